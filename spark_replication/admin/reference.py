"""The pages of the reference, written from the code: `spark-replication guide --write-reference DIR`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import spark_replication as sr
from spark_replication.config import described
from spark_replication.decoding import BY_CODE
from spark_replication.errors import ReplicationError

PACKAGE = Path(sr.__file__).parent
#: Who has the metrics of a module.
METRICS = {
    "every process": "live/exposition.py",
    "the controller": "live/controller/metrics.py",
    "a broker": "live/broker/metrics.py",
    "a broker, about tables and the writer beside it": "live/broker/table_reports.py",
    "groups, by `--groups` and the page": "client/asking/group_metrics.py",
}
PREFIX = "spark_replication_"
WIDTH = 100  # of what --help prints
#: What makes the families of metrics there: the types that their names stand for.
_FAMILIES = {
    "gauge": "gauge",
    "gauges": "gauge",
    "of_each": "gauge",
    "of_followers": "gauge",
    "counter": "counter",
    "counters": "counter",
    "counter_named_by_kip": "untyped",
    "HistogramMetricFamily": "histogram",
}
_MOVED = ("batches", "records", "bytes")
#: A use of each public name, in a line or two. tests/live/datasource/test_printed.py runs them from top to bottom.
EXAMPLES = {
    "session": 'spark = sr.session("reference")',
    "register": 'sr.register(spark, bootstrap="zk://127.0.0.1:PORT/spark_replication")',
    "Admin": 'with sr.Admin("zk://127.0.0.1:PORT/spark_replication") as admin:\n'
    "    print([topic.name for topic in admin.describe_topics()])",
    "Plan": 'with sr.Admin("zk://127.0.0.1:PORT/spark_replication") as admin:\n'
    "    plan = admin.plan_reassignment(without=[4])\n"
    "    print([move.partition for move in plan.moves])",
    "Producer": 'with sr.Producer("zk://127.0.0.1:PORT/spark_replication") as producer:\n'
    '    print(producer.send("orders", {"id": [1, 2], "amount": [9.5, 3.0]}).result())',
    "Identity": "me = sr.Identity(producer=7, epoch=0)  # the same after a crash: what is sent again is stored once\n"
    'with sr.Producer("zk://127.0.0.1:PORT/spark_replication", identity=me) as producer:\n'
    '    producer.send("orders", {"id": [1], "amount": [9.5]}, partition=0).result()',
    "Reader": 'for found in sr.Reader("zk://127.0.0.1:PORT/spark_replication").read("orders"):\n'
    "    print(found.partition, found.base_offset, found.batch.num_rows)",
    "Consumer": 'with sr.Consumer("zk://127.0.0.1:PORT/spark_replication", ["orders"], group="etl") as consumer:\n'
    "    found = consumer.poll(5)  # or: for found in consumer\n"
    "    print(None if found is None else (found.partition, found.batch.num_rows), consumer.assignment)",
    "topic": 'orders = sr.topic("orders", "zk://127.0.0.1:PORT/spark_replication", where=[("amount", ">", 5)])\n'
    "print(orders.to_arrow(), orders.tail(3))",
    "LocalReader": "from pathlib import Path\n\n"
    'for found in sr.LocalReader(next(Path(".data/logs/broker-1").glob("orders-*"))).read(start="earliest"):\n'
    "    print(found.base_offset, found.batch.num_rows)",
    "LeaderTable": 'print(sr.LeaderTable(".data/mirror").route("orders", 0))',
    "with_leader": 'spark.range(9).transform(sr.with_leader("orders", key=["id"], mirror=".data/mirror")).show()',
    "aio.Consumer": "import asyncio\n\n\n"
    "async def consume():\n"
    '    async with sr.aio.Consumer("zk://127.0.0.1:PORT/spark_replication", ["orders"], group="alerts") as consumer:\n'
    "        found = await consumer.poll(5)  # or: async for found in consumer\n"
    "        print(None if found is None else found.partition, consumer.assignment)\n\n\n"
    "asyncio.run(consume())",
    "aio.Admin": "import asyncio\n\n\n"
    "async def topics():\n"
    '    async with sr.aio.Admin("zk://127.0.0.1:PORT/spark_replication") as admin:\n'
    "        return [topic.name for topic in await admin.describe_topics()]\n\n\n"
    "print(asyncio.run(topics()))",
    "aio.Producer": "import asyncio\n\n\n"
    "async def send(rows):\n"
    '    async with sr.aio.Producer("zk://127.0.0.1:PORT/spark_replication") as producer:\n'
    '        return await asyncio.gather(*(producer.send("orders", [row]) for row in rows))\n\n\n'
    'print(asyncio.run(send([{"id": 1, "amount": 9.5}, {"id": 2, "amount": 3.0}])))',
    "aio.Reader": "import asyncio\n\n\n"
    "async def read():\n"
    '    async with sr.aio.Reader("zk://127.0.0.1:PORT/spark_replication") as reader:\n'
    '        async for found in reader.read("orders"):\n'
    "            print(found.partition, found.base_offset, found.batch.num_rows)\n\n\n"
    "asyncio.run(read())",
    "connect": 'sr.connect("zk://127.0.0.1:PORT/spark_replication").partitions()',
    "LocalCluster": "with sr.LocalCluster.start(brokers=1) as cluster:\n    print(cluster.bootstrap)",
}
#: Public names whose parts are for this package.
INTERNAL = ("Security", "errors")
#: Public names without an example of their own, and why.
WITHOUT_EXAMPLE = {
    "Security": "It is what `cluster.security` and `admin.security` hold; programs give settings by name.",
    "SparkCluster": "`jobs/start_cluster.py` is one: see [deploy](../deploy.md).",
    "errors": "See [errors](errors.md).",
}


def write_reference(folder: Path) -> list[Path]:
    """Write each page of the reference into this folder, and return what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages():
        path = folder / f"{name}.md"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def pages() -> Iterator[tuple[str, str]]:
    yield (
        "settings",
        _page("Settings", "Every setting: values, default, whether a topic may have its own.", _settings()),
    )
    yield "cli", _page("Commands", "What `--help` prints, of every command.", _commands())
    yield "errors", _page("Errors", "Every error by its code, and what a caller may do next.", _errors())
    yield "metrics", _page("Metrics", "Every metric, with the meaning that its HELP line has.", _metrics())
    yield "api", _page("API", "Every name of the package, with its parameters and an example.", _api())


def _page(title: str, summary: str, body: Iterator[str]) -> str:
    note = "*Written by `spark-replication guide --write-reference`: change the code, and write it anew.*"
    return "\n\n".join([f"# {title}", summary, note, *body]) + "\n"


def _table(head: Sequence[str], rows: Iterator[Sequence[Any]] | Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _settings() -> Iterator[str]:
    yield (
        "A file of settings, `SPARK_REPLICATION_…` in the environment, or `--set NAME=VALUE`: "
        "[deploy](../deploy.md#settings) says which counts."
    )
    rows = [
        (f"`{each.name}`", each.values, f"`{_value(each.default)}`", "yes" if each.of_topic else "", each.meaning)
        for each in described()
    ]
    yield _table(("setting", "values", "default", "topic", "meaning"), rows)


def _value(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default) or " "


def _commands() -> Iterator[str]:
    from spark_replication.admin.cli.main import cli

    yield from _helps(
        cli, click.Context(cli, info_name="spark-replication", terminal_width=WIDTH, **cli.context_settings)
    )


def _helps(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _helps(found, click.Context(found, info_name=name, parent=context))


def _errors() -> Iterator[str]:
    yield (
        "`retriable`: the same request may succeed later. `stale routes`: ask who leads first. Clients of this package "
        "do both by themselves, within the deadline of the call. `error.maybe_written` is of each error, not of its "
        "code: false promises that nothing of the request was stored."
    )
    kinds = sorted((kind for kind in BY_CODE.values() if kind is not ReplicationError), key=lambda kind: kind.code)
    rows = [
        (f"`{kind.code}`", f"`{kind.__name__}`", _yes(kind.retriable), _yes(kind.stale_routes), _meaning(kind))
        for kind in kinds
    ]
    yield _table(("code", "class in `sr.errors`", "retriable", "stale routes", "meaning"), rows)


def _yes(value: bool) -> str:  # noqa: FBT001 (a cell)
    return "yes" if value else ""


def _meaning(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _metrics() -> Iterator[str]:
    yield (
        "A histogram has the series `…_bucket`, `…_sum` and `…_count`. Series with the label `partition` come with "
        "`--per-partition` alone. Beside these each process has `process_…`. How to scrape: [metrics](../metrics.md)."
    )
    for who, module in METRICS.items():
        yield f"## Of {who}"
        yield _table(("metric", "type", "labels", "meaning"), list(_families(PACKAGE / module)))


def _families(module: Path) -> Iterator[tuple[str, str, str, str]]:
    """Metrics whose names are written in the module. What only passes names on has none."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for call in sorted(calls, key=lambda call: call.lineno):
        kind = call.func.id  # type: ignore[attr-defined]  # a Name
        texts = [_text(each) for each in call.args[:2]]
        if len(texts) < 2 or None in texts:
            continue
        name, meaning = str(texts[0]), str(texts[1])
        if kind == "traffic":
            for moved in _MOVED:
                what = "Bytes of batches" if moved == "bytes" else moved.capitalize()
                yield f"`{PREFIX}{name}_{moved}_total`", "counter", "", f"{what} that {meaning}."
        elif kind in _FAMILIES:
            within = "partition_" if kind.startswith("of_") else ""
            total = "_total" if _FAMILIES[kind] == "counter" else ""
            yield f"`{PREFIX}{within}{name}{total}`", _FAMILIES[kind], _labels(kind, call), meaning


def _text(node: ast.expr) -> str | None:
    """The text that stands there; also behind the prefix of all names."""
    if isinstance(node, ast.BinOp):
        return _text(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _labels(kind: str, call: ast.Call) -> str:
    if kind.startswith("of_"):
        return "topic, partition, follower" if kind == "of_followers" else "topic, partition"
    told = [*call.args[2:3], *(each.value for each in call.keywords if each.arg == "labels")]
    for node in told:
        if isinstance(node, ast.List):
            return ", ".join(str(_text(each)) for each in node.elts)
        if isinstance(node, ast.Name) and node.id == "names":
            return "topic, partition"
    return ""


def _api() -> Iterator[str]:
    yield "All of it is imported as `import spark_replication as sr`."
    for name, found in _public():
        yield f"## sr.{name}"
        if name in EXAMPLES:
            yield f"```python\n{EXAMPLES[name]}\n```"
        else:
            yield WITHOUT_EXAMPLE[name]
        if name in INTERNAL:
            continue
        yield _described(name, found)
        if inspect.isclass(found):
            yield from _members(found)


def _public() -> Iterator[tuple[str, Any]]:
    """Public names and what they stand for, with those of a module in place of the module."""
    for name in sr.__all__:
        found = getattr(sr, name)
        if inspect.ismodule(found) and name not in INTERNAL:
            yield from ((f"{name}.{each}", getattr(found, each)) for each in found.__all__)
        else:
            yield name, found


def _members(owner: type) -> Iterator[str]:
    rows = []
    for name, member in vars(owner).items():
        made = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") or not (inspect.isfunction(made) or isinstance(made, property)):
            continue
        shown = name if isinstance(made, property) else f"{name}{_signature(made)}"
        rows.append((f"`{shown}`", _first_sentence(inspect.getdoc(made) or "")))
    if rows:
        yield _table(("member", "what it is"), rows)


def _described(name: str, found: Any) -> str:
    signature = _signature(found.__init__ if inspect.isclass(found) else found)
    parts = [f"`{name}{signature}`", _prose(_told(found))]
    if inspect.isclass(found):
        parts.append(_prose(inspect.cleandoc(found.__init__.__doc__ or "")) if _has_python_init(found) else "")
    return "\n\n".join(part for part in parts if part)


def _told(found: Any) -> str:
    """The docstring; a dataclass without one has its signature there."""
    text = inspect.getdoc(found) or ""
    return "" if text.startswith(f"{found.__name__}(") else text


def _has_python_init(kind: Any) -> bool:
    return inspect.isfunction(vars(kind).get("__init__"))


def _signature(function: Any) -> str:
    text = str(inspect.signature(function))
    text = re.sub(r"<function .*? at 0x[0-9a-f]+>", "…", re.sub(r"\((self|cls)(, )?", "(", text))
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace(" -> None", "")


def _prose(text: str) -> str:
    return text.replace("<", "&lt;")


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)])\. ", paragraph)[0].removesuffix(".")
