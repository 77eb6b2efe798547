"""An accountant for Flower's strategies with clipping and noise at the server."""

import dataclasses
from typing import Any

from .._internal import _checks
from .._internal._calls import explained
from ..accounting import Accountant
from ..mechanisms import DPSGD
from ..sampling import FixedSize
from ._library import library

_NAME = "fdp"


@explained
class FlowerAccountant:
    """Flower's `PrivacyAccountant`, which answers by fdp_jax's certified upper bounds.

    It stands wherever `flwr.serverapp.RdpAccountant` does, such as in
    `DifferentialPrivacyServerSideFixedClipping(accountant=)`.  A release is a round:
    noise of the standard deviation noise_multiplier times the clipping norm on the sum
    of clients' updates.  Neighbors differ in one client.

    Args:
        config: A `flwr.serverapp.PrivacyConfig`: how clients are sampled, how many
            there are, and the delta of reports.

    Raises:
        TypeError: If the config is none.
        ValueError: If its sampling method is not known here.

    Example:
        ::

            config = flwr.serverapp.PrivacyConfig(
                target_delta=1e-5,
                population_size=1000,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
                sampling_method=SamplingMethod.NO_AMPLIFICATION,
            )
            accountant = fdp.interop.FlowerAccountant(config)
            strategy = DifferentialPrivacyServerSideFixedClipping(
                FedAvg(), 1.5, 1.0, 20, accountant=accountant
            )
            accountant.guarantee.beta(alpha=0.1)  # after some rounds
    """

    guarantee: Accountant
    """The account of all releases so far, with all queries."""

    def __init__(self, config: Any):
        rule = "config must be a flwr.serverapp.PrivacyConfig"
        _checks.require(hasattr(config, "sampling_method"), rule, config, TypeError)
        self.config = config
        _checks.choice("sampling_method", config.sampling_method.value, tuple(_DRAWN))
        relation = config.neighboring_relation.value.replace("-", "_")
        self.guarantee = Accountant(relation=relation)
        self._compositions: list[tuple[Any, int]] = []

    def __repr__(self) -> str:
        return f"FlowerAccountant({self.guarantee!r})"

    @property
    def num_releases(self) -> int:
        """The number of releases so far."""
        return sum(count for _, count in self._compositions)

    def compose(self, event: Any, count: int = 1) -> None:
        """Takes so many more releases.

        Args:
            event: A `flwr.supercore.privacy_accounting.GaussianPrivacyEvent`.
            count: How many, a whole number.

        Raises:
            ValueError: If it is of another population, or a number is out of range.
        """
        self.guarantee = self._after(event, count)
        self._compositions.append((event, count))

    def _after(self, event: Any, count: int) -> Accountant:
        _checks.require(
            event.population_size == self.config.population_size,
            f"population_size must be {self.config.population_size}, as in the config",
            event.population_size,
        )
        draw = _DRAWN[self.config.sampling_method.value]
        step = DPSGD(
            noise_multiplier=event.noise_multiplier,
            num_steps=1,
            relation=self.guarantee.relation,
            **draw(event.sample_size, event.population_size),
        )
        return self.guarantee.step(step, _checks.whole("count", count, 1, 1 << 30))

    @explained
    def get_epsilon(self, delta: float) -> float:
        """An upper bound of epsilon, at least 0."""
        return max(float(self.guarantee.epsilon(delta=delta)), 0.0)

    @explained
    def get_delta(self, epsilon: float) -> float:
        """An upper bound of delta."""
        return float(self.guarantee.delta(epsilon=epsilon))

    def get_privacy_spent(self, delta: float | None = None) -> Any:
        """The expense so far, as a `flwr.serverapp.PrivacySpent`.

        Args:
            delta: That of the config if it is not given.
        """
        delta = float(self.config.target_delta if delta is None else delta)
        return library("FlowerAccountant", "flwr.serverapp").PrivacySpent(
            epsilon=self.get_epsilon(delta),
            delta=delta,
            num_releases=self.num_releases,
            accounting_method=_NAME,
        )

    def would_exceed(
        self, event: Any, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether epsilon would be above a limit after so many more releases.

        Args:
            event: As of `compose`.
            max_epsilon: The limit; that of the config if it is not given.
            count: How many.

        Raises:
            ValueError: If there is no limit, or as of `compose`.
        """
        most = self.config.max_epsilon if max_epsilon is None else max_epsilon
        _checks.require(most is not None, "max_epsilon must be given here or by config")
        after = self._after(event, count)
        return bool(after.epsilon(delta=self.config.target_delta) > most)

    def state_dict(self) -> dict[str, Any]:
        """All releases so far, as JSON takes them."""
        return {
            "backend": _NAME,
            "config": dataclasses.asdict(self.config),
            "compositions": [
                {"event": dataclasses.asdict(event), "count": count}
                for event, count in self._compositions
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` of an accountant with this config wrote.

        Raises:
            ValueError: If it is of another kind of accountant, or of another config.
        """
        own = {"backend": _NAME, "config": dataclasses.asdict(self.config)}
        for name, value in own.items():
            _checks.require(
                state.get(name) == value,
                f"{name} of the state must be {value!r}",
                state.get(name),
            )
        kind = library("FlowerAccountant", "flwr.supercore.privacy_accounting")
        loaded = type(self)(self.config)
        for entry in state["compositions"]:
            loaded.compose(kind.GaussianPrivacyEvent(**entry["event"]), entry["count"])
        self.__dict__.update(loaded.__dict__)


_DRAWN = {
    "no-amplification": lambda size, clients: {"sampling_prob": 1.0},
    "poisson": lambda size, clients: {"sampling_prob": size / clients},
    "without-replacement": lambda size, clients: {
        "sampling": FixedSize(batch_size=size, dataset_size=clients)
    },
}
"""How clients are drawn, by Flower's names."""
