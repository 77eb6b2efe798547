"""Published DP-SGD runs, as data with their sources.

Each entry of `published_runs.json` states what a tutorial or paper reports about a run
(noise multiplier, batch and data set size, steps), the guarantee it claims and how it
accounted for it, with the place in the source where each number stands. Nothing in
it was computed by this package.
"""

import dataclasses
import importlib.resources
import json


@dataclasses.dataclass(frozen=True)
class PublishedRun:
    """One published DP-SGD run and the guarantee claimed for it.

    Attributes:
        id: Short name, unique in the file.
        name: Name to print.
        noise_multiplier: Standard deviation of the noise over the clipping norm.
        batch_size: Expected number of records in a batch.
        dataset_size: Number of records.
        num_steps: Number of noisy updates.
        delta: The delta of the claim.
        claimed_epsilon: The epsilon the source states at that delta.
        claimed_by: How the source accounted for it.
        sampling_in_practice: What the source says about how batches were drawn.
        source: Title and the place in it, with the numbers as they stand there.
        url: Address of the source.
        epochs: Passes over the data, where the source states these; else None.
    """

    id: str
    name: str
    noise_multiplier: float
    batch_size: int
    dataset_size: int
    num_steps: int
    delta: float
    claimed_epsilon: float
    claimed_by: str
    sampling_in_practice: str
    source: str
    url: str
    epochs: int | None = None

    @property
    def sampling_prob(self) -> float:
        """Probability that one record takes part in one step."""
        return self.batch_size / self.dataset_size


def published_runs() -> tuple[PublishedRun, ...]:
    """Read the data file.

    Returns:
        The runs in the order of the file.

    Example:
        >>> run = published_runs()[1]
        >>> run.noise_multiplier, run.num_steps, run.claimed_epsilon
        (1.1, 14063, 3.01)
    """
    path = importlib.resources.files(__name__) / "published_runs.json"
    entries = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return tuple(PublishedRun(**entry) for entry in entries)
