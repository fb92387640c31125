"""The command line: reads arguments and configuration, then calls the composition root or prints.

The exit codes are those of `options.ExitCode`. A subcommand imports only what it needs, so that `version` and completion respond
quickly, and `run` does not load the embedded cluster. Errors that a user can cause are printed as sentences, without a traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from multisched import __version__
from multisched.cli.cluster_options import kubeconfig_of
from multisched.cli.context_of_all import give_context
from multisched.cli.domain_commands import CommandsOfAll, on_demand
from multisched.cli.driving import drive
from multisched.cli.loans_command import loans_app
from multisched.cli.options import NOT_STRICT, ConfigFile, Context, Format, Kubeconfig, Output, write_whole
from multisched.cli.options import configuration_of as _configuration
from multisched.cli.options import fail as _fail
from multisched.cli.options import refuse as _refuse
from multisched.cli.options import show as _show
from multisched.cli.query_commands import ServerOptions, SourceOptions, query_command
from multisched.cli.quota_commands import quota_app
from multisched.config.options import (
    DUMP_COMMAND,
    NODES_MAX,
    ClusterOptions,
    DemoOptions,
    ExitCode,
    KubeletsOptions,
    LogFormat,
    LogLevel,
)


class DemoOutput(Enum):
    """Output format of the demo's result."""

    TABLE = "table"
    JSON = "json"


class SimulateOutput(Enum):
    """Output format of a simulation's result."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


app = typer.Typer(
    name="multisched",
    cls=CommandsOfAll,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks would print local variables, including tokens
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(name="config", help="Check and print configuration.", no_args_is_help=True)
plugins_app = typer.Typer(name="plugins", help="Show which plugins a profile can enable.", no_args_is_help=True)
repair_app = typer.Typer(
    name="repair", help="Move pods away from nodes with too high predicted peaks.", no_args_is_help=True
)
explain_app = typer.Typer(name="explain", invoke_without_command=True)
on_demand.add_typer(config_app)
on_demand.add_typer(explain_app)
on_demand.add_typer(loans_app)
on_demand.add_typer(plugins_app)
on_demand.add_typer(quota_app)
on_demand.add_typer(repair_app)

Identity = Annotated[
    str | None,
    typer.Option(
        help="Unique name of this process. Default: $POD_NAME; if unset, host name, process ID and random digits."
    ),
]
ConvertOutput = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        help="yaml or json to print, or the file to write.",
        metavar="yaml|json|FILE",
        autocompletion=lambda: ["yaml", "json"],
    ),
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"multisched {__version__}")
        raise typer.Exit


@app.callback()
def _of_all(
    ctx: typer.Context,
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig. Can also be given after the command.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Several Kubernetes schedulers in one deployment, over one shared cache."""
    if context is not None:
        give_context(ctx, context)


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(True)


@app.command()
def run(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    config: ConfigFile = None,
    identity: Identity = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="Lowest level that is logged. Default: as configured, else info.")
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="Format of log lines. Default: as configured, else text on a terminal and json elsewhere."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the HTTP server; 0: any free port. Default: as configured."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Log which pods would be bound; write nothing, not even a Lease.")
    ] = False,
) -> None:
    """Schedule pods on a cluster until SIGTERM."""
    from multisched.cli import run as cli_run

    cli_run.run(
        kubeconfig=kubeconfig,
        context=context,
        config=config,
        identity=identity,
        log_level=log_level,
        log_format=log_format,
        port=port,
        dry_run=dry_run,
    )


@on_demand.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Exit as soon as every feasible pod is bound.")] = False,
    output: Annotated[DemoOutput, typer.Option("--output", "-o", help="Format of the result.")] = DemoOutput.TABLE,
    nodes: Annotated[
        int, typer.Option(min=3, max=NODES_MAX, help="Number of nodes, including GPU and virtual nodes.")
    ] = 300,
    job_pods: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Number of job pods created at once. Default: 10 for every 3 nodes."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the HTTP server; 0: any free port. Default: 10260 if it is free."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="File for the kubeconfig. Default: one in a temporary folder.", dir_okay=False)
    ] = None,
    config: ConfigFile = None,
    seed: Annotated[int, typer.Option(help="Seed of all random decisions.")] = 0,
) -> None:
    """Try multisched without a cluster: with an embedded API server, fake nodes, three domains and a mixed workload."""

    def start() -> Awaitable[int]:
        from multisched import app as root
        from multisched.demo import configuration as demo_configuration
        from multisched.demo import run as demo_run

        wanted = demo_configuration.demo_configuration() if config is None else _configuration(config)
        if port is not None:
            wanted = demo_configuration.with_port(wanted, port)
        return demo_run.demo(
            DemoOptions(
                wanted,
                root.default_identity(),
                nodes=nodes,
                job_pods=job_pods,
                is_once=once,
                output=output.value,
                kubeconfig=kubeconfig,
                seed=seed,
            )
        )

    drive(start)


@on_demand.command()
def cluster(
    kubeconfig: Annotated[Path, typer.Option(help="File for the kubeconfig.", dir_okay=False)],
    nodes: Annotated[int, typer.Option(min=0, max=NODES_MAX, help="Fake nodes to start with.")] = 0,
    gpu_nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE=N",
            help="Add N nodes with eight GPUs that this sharing system manages, for instance hami=2. Repeatable.",
        ),
    ] = None,
    gpu_plugin_delay: Annotated[
        float, typer.Option(metavar="S", min=0, max=600, help="Seconds that a GPU device plugin takes to answer.")
    ] = 0.0,
    virtual: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=NODES_MAX, help="Add N virtual nodes, on which one provider runs sandboxes."
        ),
    ] = 0,
    provider: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Setting of that provider, for instance perSecond=20. Repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API server; 0: any free port.")] = 0,
    until_input_ends: Annotated[bool, typer.Option("--until-input-ends", hidden=True)] = False,
) -> None:
    """Run the embedded Kubernetes API server with fake nodes, for kubectl and for tests."""
    from multisched.cli.gpu_nodes_option import counts_of
    from multisched.cli.provider_option import nodes_of

    counts = counts_of(gpu_nodes or [], NODES_MAX)
    virtual_nodes = nodes_of(virtual, provider or [])

    def start() -> Awaitable[int]:
        from multisched import embedded_app

        return embedded_app.cluster(
            ClusterOptions(
                kubeconfig,
                nodes=nodes,
                gpu_nodes=counts,
                gpu_plugin_delay_s=gpu_plugin_delay,
                virtual_nodes=virtual_nodes,
                port=port,
                until_input_ends=until_input_ends,
            )
        )

    drive(start)


@on_demand.command()
def kubelets(
    kubeconfig: Annotated[Path, typer.Option(help="Cluster whose nodes are simulated.", exists=True, dir_okay=False)],
    context: Context = None,
    stages: Annotated[
        Path | None, typer.Option(help="File of Stage documents. Default: built-in stages.", dir_okay=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random decisions.")] = 0,
) -> None:
    """Act as the kubelets of a cluster's nodes, so that pods run and Jobs finish, and as a provisioner of volumes.

    PersistentVolumeClaims whose StorageClass has the provisioner disk.multisched.io get volumes, which store no data.
    """

    def start() -> Awaitable[int]:
        from multisched import embedded_app

        return embedded_app.kubelets(KubeletsOptions(kubeconfig, context, stages=stages, seed=seed))

    drive(start)


@on_demand.command()
def simulate(
    scenario: Annotated[Path, typer.Argument(help="The scenario file; config/examples has some.")],
    output: Annotated[
        SimulateOutput, typer.Option("--output", "-o", help="Format of the result.")
    ] = SimulateOutput.TABLE,
    jobs: Annotated[int | None, typer.Option(min=1, max=64, help="Number of processes. Default: one per CPU.")] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="File for the event log, one JSON object per line (kinds gpuTide and jobDay)."
        ),
    ] = None,
) -> None:
    """Place recorded services with the real scheduler, in virtual time, and compare policies."""
    from multisched.cli import simulate as cli_simulate
    from multisched.config.document import ConfigError
    from multisched.framework.registry import PluginSetupError

    try:
        report, is_whole = cli_simulate.simulate(scenario, output.value, jobs, events)
    except ConfigError as error:
        _refuse(error.problems)
    except OSError as error:
        _fail(f"the log of events cannot be written: {error}")
    except PluginSetupError as error:
        _fail(str(error))
    _show(report)
    if not is_whole:
        _fail("some pods were not placed, or plugins failed; the report names them", ExitCode.PROBLEM)


@on_demand.command()
@query_command(ServerOptions)
def queue(
    options: ServerOptions,
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, max=5000, help="Number of pods, the longest waiting first. Default: 20 on a terminal, else 100."
        ),
    ] = None,
    output: Format = Output.TABLE,
) -> Iterator[str]:
    """Show the pending pods per queue, with the reason."""
    from multisched.cli import queue as cli_queue

    shown = cli_queue.shown_at_once(output.value) if limit is None else limit
    return cli_queue.show(cli_queue.QueueQuery(options.running(), domain, shown), output.value)


@explain_app.callback()
@query_command(SourceOptions)
def explain(
    options: SourceOptions,
    ctx: typer.Context,
    what_if: Annotated[bool, typer.Option("--what-if", help="Show where the pods of -f would be placed now.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File of pods and workloads; - for standard input.")
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of copies of each pod, placed one after the other.")
    ] = 1,
    output: Format = Output.TABLE,
) -> str | None:
    """Show what happened to a pod and why, or where pods would be placed. Nothing is written."""
    if ctx.invoked_subcommand is not None:
        if what_if or file is not None:
            _fail(f"--what-if and --file cannot be used with {ctx.invoked_subcommand}")
        return None
    if not what_if or file is None:
        _fail("write `explain pod NAMESPACE/NAME` or `explain --what-if -f FILE`; see --help")
    from multisched.cli import explain as cli_explain

    return cli_explain.explain_what_if(options.source(), file, replicas, output.value)


@explain_app.command("pod")
@query_command(SourceOptions)
def explain_pod(
    options: SourceOptions,
    name: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="The pod; without a namespace, it is in default.")
    ],
    node: Annotated[str | None, typer.Option(help="Show why this node was not chosen.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Show which single change would make it fit.")] = False,
    output: Format = Output.TABLE,
) -> str:
    """Show what happened to a pod, and why."""
    from multisched.cli import explain as cli_explain
    from multisched.observe.explain_view import ExplainQuery

    namespace, pod = cli_explain.pod_name(name)
    query = ExplainQuery(namespace, pod, node=node or "", with_fixes=fix)
    return cli_explain.explain_pod(options.source(), query, output.value)


@on_demand.command()
def verify(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(help=f"Check this output of {DUMP_COMMAND} instead of a cluster; - for standard input."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="multisched's configuration; adds the rules about domains.", dir_okay=False),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with an error also for pods that may have complied when they were placed."),
    ] = False,
    names_all: Annotated[
        bool, typer.Option("--all", help="Print one row per pod, even for pods with the same rule and reason.")
    ] = False,
    output: Format = Output.TABLE,
) -> None:
    """List all running pods that violate a required rule, including pods of other schedulers. Nothing is written."""
    from multisched.cli import verify as cli_verify
    from multisched.config.domains import judged_domains

    if snapshot is not None and (kubeconfig is not None or context is not None):
        _fail("--snapshot excludes --kubeconfig and --context: it is read instead of a cluster")
    domains = judged_domains(_configuration(config)) if config is not None else ()

    async def judge() -> int:
        if snapshot is not None:
            found = cli_verify.verify_snapshot(snapshot, domains)
        else:
            from multisched.client.transport import connect
            from multisched.shell.audit.cluster_judge import judge_cluster

            async with connect(kubeconfig_of(kubeconfig, context), context) as transport:
                found = await judge_cluster(transport, domains)
        _show(cli_verify.as_text(found, output.value, names_all=names_all))
        return cli_verify.exit_code(found, is_strict=strict)

    drive(judge)


@config_app.command()
def validate(file: Annotated[Path, typer.Argument(help="The configuration file.")]) -> None:
    """Report all errors in a configuration file, and settings that have no effect."""
    from multisched.config.profile import notes_on

    configuration = _configuration(file)
    of_domains = (note for domain in configuration.domains for note in notes_on(domain))
    for note in (*configuration.server.tls.notes(), *of_domains):
        _show(f"{file}: {note}")
    names = ", ".join(f"{d.name} ({', '.join(d.scheduler_names)})" for d in configuration.domains)
    typer.echo(f"{file}: valid; domains: {names}")


@config_app.command("diff")
@query_command(ServerOptions)
def config_diff(
    options: ServerOptions,
    file: Annotated[
        Path | None, typer.Argument(help="The file to compare. Default: the file that the running program uses.")
    ] = None,
    output: Format = Output.TABLE,
) -> str:
    """Compare a file with the configuration of a running multisched: which changes would apply at once, and which need a restart.

    Exits with 1 if they differ.
    """
    from multisched.cli import config_diff as cli_config_diff

    return cli_config_diff.show(options.running(), None if file is None else _configuration(file), output.value)


@config_app.command()
def default() -> None:
    """Print the default configuration with every setting explained."""
    from multisched.config import loading
    from multisched.config import print as config_print

    typer.echo(config_print.configuration_text(loading.default()), nl=False)


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from multisched.config import print as config_print

    typer.echo(config_print.schema_text(), nl=False)


@config_app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).")],
    output: ConvertOutput = "yaml",
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail, and write nothing, if any setting cannot be converted.")
    ] = False,
) -> None:
    """Convert a configuration of kube-scheduler to one of multisched, and list the settings that cannot be converted."""
    from multisched.cli import convert as cli_convert
    from multisched.config.document import ConfigError

    try:
        conversion = cli_convert.load(file)
    except ConfigError as error:
        _refuse(error.problems)
    for finding in conversion.findings:
        _show(str(finding), to_errors=True)
    if strict and conversion.findings.has_warnings:
        _fail(NOT_STRICT, ExitCode.PROBLEM)
    text = cli_convert.as_json(conversion) if output == "json" else cli_convert.as_yaml(conversion, str(file))
    if output in ("yaml", "json"):
        typer.echo(text, nl=False)
    else:
        write_whole(Path(output), text, sources=(file,))


@repair_app.command("plan")
@query_command(SourceOptions)
def repair_plan(
    options: SourceOptions,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            help="Highest allowed predicted peak in percent of capacity: DIMENSION=PERCENT, or PERCENT for all dimensions. "
            "Default: as configured, else 100.",
            metavar="log=90",
        ),
    ] = None,
    moves: Annotated[
        int | None, typer.Option(min=0, max=10_000, help="Maximum number of moves. Default: as configured.")
    ] = None,
    moves_per_node: Annotated[
        int | None, typer.Option(min=0, max=10_000, help="Maximum number of moves from or to one node.")
    ] = None,
    moves_per_service: Annotated[
        int | None, typer.Option(min=0, max=10_000, help="Maximum number of moved pods of one service.")
    ] = None,
    domain: Annotated[str, typer.Option(help="The domain; required if several domains can be repaired.")] = "",
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Let the running process execute exactly this plan, within its repair window."),
    ] = False,
    output: Format = Output.TABLE,
) -> str | Iterator[str]:
    """Show the fewest moves after which no node's predicted peak exceeds the threshold; --apply executes them."""
    from multisched.cli import repair

    question = repair.request_of(
        threshold or (), domain=domain, moves=moves, per_node=moves_per_node, per_service=moves_per_service
    )
    return (repair.apply if apply else repair.plan)(options.source(), question, output.value)


@repair_app.command("status")
@query_command(ServerOptions)
def repair_status(
    options: ServerOptions,
    domain: Annotated[str, typer.Option(help="The domain; required if several domains can be repaired.")] = "",
    output: Format = Output.TABLE,
) -> str:
    """Show the repair window, the repair in progress, and the remaining budget of moves."""
    from multisched.cli import repair

    return repair.status(options.running(), domain, output.value)


@plugins_app.command("list")
def list_plugins(config: ConfigFile = None, output: Format = Output.TABLE) -> None:
    """List the built-in plugins that a profile can name, and the plugins that the configuration adds."""
    from multisched.cli import plugins

    _show(plugins.show(_configuration(config), output.value))
