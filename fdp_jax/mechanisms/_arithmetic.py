"""What stands in for sums and products of mechanisms, which there are none of."""

from typing import Any, NoReturn


class NoArithmetic:
    """Operators that say what composes and what repeats."""

    def __add__(self, other: Any) -> Any:
        _refuse("+", "compose(one, other)")

    def __radd__(self, other: Any) -> Any:
        _refuse("+", "compose(one, other, ...) and compose(*mechanisms)")

    def __matmul__(self, other: Any) -> Any:
        _refuse("@", "compose(one, other)")

    def __mul__(self, other: Any) -> Any:
        _refuse("*", f"mechanism.repeat({_times(other)})", "repetition")

    def __rmul__(self, other: Any) -> Any:
        return self.__mul__(other)

    def __pow__(self, other: Any) -> Any:
        _refuse("**", f"mechanism.repeat({_times(other)})", "repetition")


def _times(other: Any) -> str:
    return f"{other}" if isinstance(other, int | float) else "num_steps"


def _refuse(sign: str, call: str, what: str = "composition") -> NoReturn:
    where = "fdp_jax." if call.startswith("compose") else ""
    raise TypeError(f"mechanisms have no {sign}: {what} is {where}{call}")
