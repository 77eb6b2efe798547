"""What stands in for sums and products of mechanisms, which there are none of."""

from typing import Any, NoReturn

_COMPOSITION = (
    "composition is fdp_jax.compose(one, other), of many fdp_jax.compose(*mechanisms)"
)


class NoArithmetic:
    """Operators that say what composes and what repeats."""

    def __add__(self, other: Any) -> Any:
        _refuse("+", _COMPOSITION)

    def __matmul__(self, other: Any) -> Any:
        _refuse("@", _COMPOSITION)

    def __mul__(self, other: Any) -> Any:
        _refuse("*", _repetition(other))

    def __pow__(self, other: Any) -> Any:
        _refuse("**", _repetition(other))

    __radd__, __rmul__ = __add__, __mul__


def _repetition(times: Any) -> str:
    shown = times if isinstance(times, int | float) else "num_steps"
    return f"repetition is mechanism.repeat({shown})"


def _refuse(sign: str, instead: str) -> NoReturn:
    raise TypeError(f"mechanisms have no {sign}: {instead}")
