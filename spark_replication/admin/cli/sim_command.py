"""`spark-replication sim`: runs the simulator over seeds, and tells each failure in one line that replays it."""

from __future__ import annotations

import sys

import click
import msgspec

from spark_replication.sim import run as simulator
from spark_replication.sim.faults import DEFAULT, FAULTS, MIXES
from spark_replication.sim.run import Report, Result

ELECTIONS = ("isr", "elr", "last_known_leader", "unclean", "unclean_recovery", "designated", "preferred")


class _Seeds(click.ParamType[range]):
    """A range of seeds A..B, both ends included, or one number."""

    name = "A..B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        first, dots, last = str(value).partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            self.fail(f"{value!r} is not of the form A..B", param, ctx)
        seeds = range(int(first), int(last if dots else first) + 1)
        if not seeds:
            self.fail(f"{value!r} holds no seed: A..B has A at or below B", param, ctx)
        return seeds


@click.command()
@click.option("--seeds", type=_Seeds(), help="run these, both ends included")
@click.option("--seed", type=click.IntRange(min=0), help="run this one")
@click.option("--trace", is_flag=True, help="of one seed: everything that happened, an event a line")
@click.option(
    "--profile",
    type=click.Choice((DEFAULT, *MIXES)),
    default=DEFAULT,
    show_default=True,
    help="which faults come how often, and with `queries`, who writes; `guardians` has a world of its own; by default "
    "the others take turns",
)
@click.option("--jobs", type=click.IntRange(min=1), help="processes; by default one a processor")
@click.option("--shrink", is_flag=True, help="of what fails, look for the fewest faults that still break it")
@click.option("--first-failure", is_flag=True, help="stop at the first failure")
@click.option("--json", "as_json", is_flag=True, help="what was found, and how often each fault and election occurred")
def sim(
    *,
    seeds: range | None,
    seed: int | None,
    trace: bool,
    profile: str,
    jobs: int | None,
    shrink: bool,
    first_failure: bool,
    as_json: bool,
) -> None:
    """Run the core through seeded faults: exit 0 if no invariant breaks, 1 if one does, 2 for wrong usage."""
    if (seeds is None) == (seed is None):
        raise click.UsageError("give --seeds A..B or --seed N")
    if trace and seed is None:
        raise click.UsageError("--trace shows one run: give --seed N")
    if seed is not None:
        report = Report()
        report.add(simulator.run_seed(seed, profile, traced=trace))
    else:
        assert seeds is not None
        report = simulator.run_seeds(seeds, profile, jobs=jobs, first_failure=first_failure)
    if trace:
        for line in report.traces:
            click.echo(line)
    smallest = [simulator.shrink(failed, profile) for failed in report.failures] if shrink else []
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_summary(report, smallest, profile))).decode())
    else:
        _tell(report, smallest, profile)
    sys.exit(1 if report.failures else 0)


def _tell(report: Report, smallest: list[Result], profile: str) -> None:
    for place, failed in enumerate(report.failures):
        assert failed.failure is not None
        click.echo(failed.sentence(profile))
        click.echo(f"    {failed.failure.what}")
        for fault in smallest[place].faults if smallest else ():
            click.echo(f"    with {fault}")
    click.echo(f"{report.seeds} seeds, {report.events} events, {len(report.failures)} failed")


def _summary(report: Report, smallest: list[Result], profile: str) -> dict[str, object]:
    return {
        "seeds": report.seeds,
        "events": report.events,
        "events_min": report.events_min,
        "leader_epochs_min": report.epochs_min,
        "faults": {kind: report.counts[f"fault_{kind}"] for kind in sorted(FAULTS)},
        "elections": {kind: report.counts[f"elected_{kind}"] for kind in ELECTIONS},
        "occurrences": {
            name: count for name, count in sorted(report.counts.items()) if not name.startswith(("fault_", "elected_"))
        },
        "failures": [
            {
                "seed": failed.seed,
                "step": failed.failure.step,
                "invariant": failed.failure.invariant,
                "what": failed.failure.what,
                "replay": failed.sentence(profile),
                "faults": [str(fault) for fault in (smallest[place] if smallest else failed).faults],
            }
            for place, failed in enumerate(report.failures)
            if failed.failure is not None
        ],
    }
