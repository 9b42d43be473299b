"""`burnish campaign`: thousands of rounds as chunk after chunk of rounds, on this machine or on a cluster's KFP.

The same command goes on with a campaign that was stopped, killed, or given more rounds.
"""

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from burnish.campaign.controller import Launcher, drive
from burnish.campaign.lease import hold_lease
from burnish.campaign.log import CampaignLog, campaign_ids
from burnish.campaign.plan import campaign_id_of, check_campaign, rounds_per_chunk
from burnish.cli.campaign_view import ChunkLines, print_campaign, standing
from burnish.cli.compile import add_cluster_arguments
from burnish.cli.containers import check_daemon
from burnish.cli.home import Home
from burnish.cli.kfp_client import add_kfp_arguments
from burnish.cli.local_run import add_local_arguments, shown, start_services
from burnish.cli.past_run import open_home_store
from burnish.cli.run import interrupt
from burnish.cli.settings import add_config_arguments, config_of
from burnish.contracts.campaign import Campaign
from burnish.contracts.config import RunConfig
from burnish.contracts.errors import BurnishError, StoreError
from burnish.report.campaign import render_campaign
from burnish.store import ArtifactStore, open_store


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("campaign", help="train chunk after chunk of rounds, here or on a cluster")
    add_config_arguments(parser)
    add_kfp_arguments(parser, "KFP API that chunks are submitted to; without one they run on this machine")
    # Unlike submit, a campaign is at home here: a KFP_HOST that is set for other verbs must not take it elsewhere.
    parser.set_defaults(host=None)
    parser.add_argument("--experiment", default="burnish", help="KFP experiment")
    parser.add_argument(
        "--status", action="store_true", help="show the campaign (without CONFIG, all) and start nothing"
    )
    parser.add_argument(
        "--page", metavar="FILE", help="HTML of the campaign (default: in the home, campaigns/<id>.html)"
    )
    parser.add_argument(
        "--detach", action="store_true", help="with --host: start the campaign inside the cluster, as a pipeline"
    )
    parser.add_argument("--compile", metavar="FILE", help="write the IR of that pipeline and start nothing")
    add_cluster_arguments(parser)
    add_local_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(given: argparse.Namespace) -> int:
    if given.status:
        return _show(given)
    config = config_of(given)
    check_campaign(config)
    if given.detach or given.compile:
        from burnish.cli.campaign_detach import detach

        return detach(given, config)
    home = Home.default(given.home)
    signal.signal(signal.SIGTERM, interrupt)
    with _place(given, config, home) as (store, launcher, lines):
        return _drive(given, config, home, store, launcher, lines)


@contextmanager
def _place(
    given: argparse.Namespace, config: RunConfig, home: Home
) -> Iterator[tuple[ArtifactStore, Launcher, ChunkLines]]:
    """Store and launcher of the machine or the cluster."""
    lines = ChunkLines()
    if given.host:
        from burnish.cli.campaign_kfp import KfpLauncher

        if not os.environ.get("BURNISH_STORE"):
            raise BurnishError(
                "BURNISH_STORE is not set: a campaign reads what its chunks left; set it to the store that the "
                "cluster's stages write to, or use --detach to run the campaign in the cluster"
            )
        yield open_store(), KfpLauncher(given, config, lines.tell), lines
        return
    from burnish.cli.campaign_local import LocalLauncher

    if given.runner == "docker":
        check_daemon()
    with home.lock(), ExitStack() as services:
        environment = start_services(given, home, services)
        os.environ.update(environment)
        yield open_store(), LocalLauncher(given, config, home, environment), lines


def _drive(
    given: argparse.Namespace,
    config: RunConfig,
    home: Home,
    store: ArtifactStore,
    launcher: Launcher,
    lines: ChunkLines,
) -> int:
    campaign_id = campaign_id_of(config)
    page = Path(given.page) if given.page else home.root / "campaigns" / f"{campaign_id}.html"
    planned = f"{config.campaign.rounds} rounds in chunks of {rounds_per_chunk(config)}"
    lines.tell(f"campaign {campaign_id}: {planned}, {shown(page)}")

    def on_change(campaign: Campaign) -> None:
        lines.show(campaign)
        _write_page(page, campaign, config)

    try:
        with hold_lease(store, campaign_id, lines.tell) as controller:
            log = CampaignLog(store, campaign_id, controller)
            campaign = drive(store, config, log, launcher, on_change)
    except KeyboardInterrupt:
        left = "its chunk stops with it" if not given.host else "its chunk goes on in the cluster"
        lines.tell(f"interrupted: {left}; the same command goes on with campaign {campaign_id}")
        return 130
    print_campaign(campaign)
    print(f"page    {shown(page)}")
    return 0


def _write_page(page: Path, campaign: Campaign, config: RunConfig) -> None:
    links = {
        chunk.number: chunk.link if "://" in chunk.link else os.path.relpath(chunk.link, page.parent)
        for chunk in campaign.chunks
        if chunk.link
    }
    page.parent.mkdir(parents=True, exist_ok=True)
    draft = page.with_name(f".{page.name}.part")
    draft.write_text(render_campaign(campaign, config.name, config.campaign.rounds, links), "utf-8")
    draft.replace(page)


def _show(given: argparse.Namespace) -> int:
    """`--status`."""
    home = Home.default(given.home)
    with ExitStack() as services:
        try:
            store = open_home_store(home, services)
        except StoreError as error:
            # The embedded store belongs to the campaign that is running.
            pages = sorted((home.root / "campaigns").glob("*.html"))
            raise BurnishError(f"{error}; meanwhile see {', '.join(map(shown, pages)) or 'its terminal'}") from None

        def read(campaign_id: str) -> Campaign:
            return CampaignLog(store, campaign_id, "").latest()

        if not given.config:
            for campaign_id in campaign_ids(store):
                print(standing(read(campaign_id)))
            return 0
        campaign = read(campaign_id_of(config_of(given)))
        if not campaign.revision:
            raise BurnishError(f"campaign {campaign.campaign_id} has not begun in {store.backend.url}")
        print_campaign(campaign)
    return 0
