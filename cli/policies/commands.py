"""``kopt policies``: plan, apply, list and report compliance policies."""

from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Format

app = typer.Typer(
    no_args_is_help=True,
    help="Compliance policies: what pods have to be like, compiled so that the API server enforces it by itself.",
)

Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", metavar="FILE", help="CompliancePolicies, - for standard input; else the cluster's."),
]


@app.command("plan")
def plan(
    file: Files = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no cluster; the CEL is only parsed.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what the policies become and what that changes in the cluster. Nothing is written.

    The API server compiles every expression in a dry run: CEL that does not type-check is refused here, with its
    message. With -o yaml the objects can be applied as they are.

    Examples:

        kopt policies plan -f policies.yaml

        kopt policies plan -f policies.yaml --offline -o yaml
    """
    from kopt.cli.policies.applying import plan_policies

    plan_policies(file or [], kubeconfig, output, offline=offline)


@app.command("apply")
def apply(
    file: Files = None,
    kubeconfig: Kubeconfig = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Write the policies and what they become (server-side apply, field manager kopt-policies).

    Nothing is written while anything is refused. What a policy becomes goes with it: `kubectl delete compliancepolicy
    NAME` ends it. `kopt off` takes all of it out, and leaves the CompliancePolicies.

    Examples:

        kopt policies apply -f policies.yaml

        kopt policies apply --dry-run
    """
    from kopt.cli.policies.applying import apply_policies

    apply_policies(file or [], kubeconfig, output, dry_run=dry_run)


@app.command("list")
def list_(kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """List the policies of the cluster: mode, what they ask for, whether the API server has them, their exemptions.

    Examples:

        kopt policies list

        kopt policies list -o json
    """
    from kopt.cli.policies.listing import list_policies

    list_policies(kubeconfig, output)


@app.command("report")
def report(
    file: Files = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", metavar="NAME", help="Only this one.")] = "",
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Only this one.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Say how the pods that run already stand to the policies, by namespace and policy.

    The expressions are those that the API server has, evaluated here. With -f policies that are not applied yet: what
    would they find? An exemption counts until its date, whenever the pod was created. -o json names every pod.

    Examples:

        kopt policies report

        kopt policies report -f policies.yaml -n research -o json
    """
    from kopt.cli.policies.reporting import report_policies

    report_policies(file or [], namespace, policy, kubeconfig, output)
