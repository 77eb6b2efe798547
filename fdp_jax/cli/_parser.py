"""Arguments of the command line."""

import argparse
import importlib.metadata
import sys
from typing import Any, NoReturn

from .._internal._calls import suggestion
from ._options import COMMANDS


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with exit status 2.

    Abbreviations are refused: a script with one would break with the next option.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """As usual, but a wrong option is named before those that are missing."""
        known = self._option_string_actions
        options = {x.lstrip("-").replace("-", "_"): x for x in known}
        for word in [] if self._subparsers else args or ():
            name = word.partition("=")[0]
            if name[:2] == "--" != name and name not in known:
                found = suggestion(name[2:].replace("-", "_"), options)
                hint = f": did you mean {options[found]}?" if found else ""
                if not hint and any(x.startswith("--mechanism") for x in args):
                    hint = ': write it as in --mechanism "ZCDP(rho=0.1)"'
                self.error(f"there is no option {name}{hint}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message and leave."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        sys.exit(2)


def build_parser() -> Parser:
    """The parser with all commands."""
    parser = Parser(
        prog="fdp-jax",
        description="Certified privacy accounting and calibration of DP-SGD and all "
        "other mechanisms.",
        epilog="Exit status: 0 answered, 2 bad usage or values, 3 target unreachable "
        "or only a vacuous bound. Compiled programs are kept in the user's cache "
        "folder; FDP_JAX_CACHE moves that, or switches it off.",
    )
    version = importlib.metadata.version("fdp-jax")
    parser.add_argument("--version", action="version", version=f"fdp-jax {version}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        told = {"help": command.help, "description": command.description}
        own = parsers.add_parser(name, **told)
        for title, options in command.groups.items():
            group = own.add_argument_group(title)
            for option, settings in options.items():
                group.add_argument(option, **settings)
    return parser
