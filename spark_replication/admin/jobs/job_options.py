"""Options that the jobs share: settings, the addresses of brokers, and security."""

from __future__ import annotations

import argparse
import os

from spark_replication.client.finding.bootstrap import FORMS
from spark_replication.client.finding.settings_file import given_settings
from spark_replication.config import BOOTSTRAP_VARIABLE, Settings, parse_assignment
from spark_replication.core.settings_in_force import GivenSettings
from spark_replication.transport.security.security import Security, read_security


def parser_of(described: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_settings(parser: argparse.ArgumentParser, default: str | None) -> None:
    file = "TOML file of settings" if default is None else "TOML file of settings (default: %(default)s)"
    parser.add_argument("--config", default=default, help=file)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, over the file's")


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    known = os.environ.get(BOOTSTRAP_VARIABLE)
    parser.add_argument(
        "--bootstrap",
        "-b",
        default=known,
        required=known is None,
        help=f"{FORMS} (or in ${BOOTSTRAP_VARIABLE})",
    )


def given_of(options: argparse.Namespace) -> GivenSettings:
    return given_settings(options.config, *map(parse_assignment, options.set))


def settings_of(options: argparse.Namespace) -> Settings:
    return given_of(options).settings


def security_of(options: argparse.Namespace) -> Security:
    return read_security(settings_of(options))


def count(text: str) -> int:
    """Parse an option that is 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def rate(text: str) -> int:
    """Parse an option that is 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
