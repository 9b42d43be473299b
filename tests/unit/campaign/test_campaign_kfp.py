"""`burnish campaign --host` against a stand-in for KFP's API, over HTTP with the real client and a real store."""

import json
from urllib.parse import parse_qs, urlparse

import pytest
import yaml
from fake_chunks import Runs
from kfp_stand_in import FakeKfp, serve_kfp

from burnish.campaign.log import CampaignLog, campaign_ids
from burnish.campaign.plan import campaign_id_of
from burnish.cli.campaign_kfp import KfpLauncher
from burnish.cli.main import main
from burnish.contracts.errors import StoreError
from burnish.contracts.loading import load_config
from burnish.store import open_store
from pipelines.campaign import campaign as component

SETTINGS = ["name=demo", "rounds=2", "campaign.rounds=5"]
DEMO = campaign_id_of(load_config(None, SETTINGS))


class CampaignKfp(FakeKfp):
    """Keeps each run under an id of its own, finds runs by name, and runs them at once."""

    def do_GET(self):
        url = urlparse(self.path)
        if url.path.endswith("/runs"):
            wanted = json.loads(parse_qs(url.query)["filter"][0])["predicates"][0]["stringValue"]
            self.reply({"runs": [run for run in self.server.known if run["display_name"] == wanted]})
        elif "/runs/" in url.path:
            found = [run for run in self.server.known if run["run_id"] == url.path.rpartition("/")[2]]
            self.reply(found[0] if found else {"error": "gone"}, 200 if found else 404)
        else:
            super().do_GET()

    def do_POST(self):
        if not urlparse(self.path).path.endswith("/runs"):
            super().do_POST()
            return
        run = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        error = self.server.run(run)
        state = {"state": "FAILED", "error": {"message": error}} if error else {"state": "SUCCEEDED"}
        self.server.known.append(run | {"run_id": f"id-{len(self.server.known)}"} | state)
        self.reply(self.server.known[-1])


@pytest.fixture
def kfp(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "bucket"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BURNISH_HOME", str(tmp_path / "home"))
    with serve_kfp(CampaignKfp) as server:
        server.spec = {"pipeline_spec": {"root": {"dag": {"tasks": {}}}, "components": {}}}
        server.known = []
        store = open_store()
        runs = Runs(store, tmp_path / "files")

        def run(submitted):
            (campaign_id,) = campaign_ids(store)
            chunk = CampaignLog(store, campaign_id, "").latest().chunks[-1]
            assert submitted["display_name"].startswith(chunk.run_id)
            runs.submit(submitted["display_name"])
            return runs.finish(submitted["display_name"], chunk)

        server.run, server.store, server.jobs = run, store, runs
        yield server


def campaign(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["campaign", *arguments])
    return caught.value.code


def test_chunks_of_one_length_are_one_version_with_other_parameters(kfp, capsys, tmp_path):
    assert campaign("--host", kfp.host, *SETTINGS) == 0
    first, second, _ = kfp.known
    assert len(kfp.versions) == 2, "two chunks of two rounds and one of one"
    version = [run["pipeline_version_reference"]["pipeline_version_id"] for run in kfp.known]
    assert version == ["v0", "v0", "v1"]
    parameters = [run["runtime_config"]["parameters"] for run in (first, second)]
    assert [values["run_id"][-5:] for values in parameters] == ["-0001", "-0002"]
    overrides = dict(pair.split("=", 1) for pair in parameters[1]["overrides"].split())
    assert overrides["start.round"] == "2"
    assert overrides["rounds"] == "2"
    assert kfp.store.get_manifest(overrides["start.policy"]).kind == "policy"
    said = capsys.readouterr().out
    assert "✓ chunk 1: rounds 1-2  reward 0.1 → 0.2  KL -  held-out pass@1 0.020  ok\n" in said
    assert f"▶ chunk 3: rounds 5  {kfp.host}/#/runs/details/id-2" in said
    (page,) = (tmp_path / "home" / "campaigns").glob("*.html")
    assert f"{kfp.host}/#/runs/details/id-1" in page.read_text()


class Killed(BaseException):
    pass


def test_a_controller_killed_after_submitting_finds_its_run_and_does_not_submit_again(kfp, monkeypatch):
    start = KfpLauncher.start

    def killed(self, chunk):
        start(self, chunk)
        raise Killed

    monkeypatch.setattr(KfpLauncher, "start", killed)
    with pytest.raises(Killed):
        main(["campaign", "--host", kfp.host, *SETTINGS])
    monkeypatch.setattr(KfpLauncher, "start", start)
    (run_id,) = kfp.jobs.submitted
    for key in [found.key for found in kfp.store.backend.list(f"runs/{run_id}/")]:
        kfp.store.backend.delete([key])
    kfp.run = lambda submitted: pytest.fail("a second run of the chunk")
    assert campaign("--host", kfp.host, *SETTINGS) == 5, "the run is found; here it left nothing"
    assert len(kfp.known) == 1


def test_a_run_that_fails_in_kfp_is_named_and_tried_again_by_the_same_command(kfp, capsys):
    kfp.jobs.fail.add(f"{DEMO}-0002")
    assert campaign("--host", kfp.host, *SETTINGS) == 5
    assert "chunk 2" in (error := capsys.readouterr().err)
    assert "out of memory" in error
    assert campaign("--host", kfp.host, "--status") == 0
    assert "running, 2 rounds in 1 chunks; chunk 2 failed: out of memory" in capsys.readouterr().out
    assert campaign("--host", kfp.host, *SETTINGS) == 0
    names = [run["display_name"] for run in kfp.known]
    assert names[1:3] == [f"{DEMO}-0002", f"{DEMO}-0002-attempt-2"]
    assert campaign("--status", *SETTINGS) == 0
    assert "finished, 5 rounds in 3 chunks" in capsys.readouterr().out


def test_ctrl_c_says_how_to_go_on_and_gives_the_lease_back(kfp, monkeypatch, capsys):
    def interrupted(self, chunk):
        raise KeyboardInterrupt

    monkeypatch.setattr(KfpLauncher, "wait", interrupted)
    assert campaign("--host", kfp.host, *SETTINGS) == 130
    assert "its chunk goes on in the cluster; the same command goes on" in capsys.readouterr().out
    assert not [found for found in kfp.store.backend.list("campaigns/") if found.key.endswith("lease.json")]


def test_without_the_clusters_store_it_says_what_to_set(kfp, monkeypatch, capsys):
    monkeypatch.delenv("BURNISH_STORE")
    assert campaign("--host", kfp.host, *SETTINGS) == 1
    assert "BURNISH_STORE is not set: a campaign reads what its chunks left" in capsys.readouterr().err


def test_status_while_the_embedded_store_is_in_use_points_at_the_page(tmp_path, monkeypatch, capsys):
    def in_use(home, services):
        raise StoreError("home folder is in use")

    monkeypatch.setattr("burnish.cli.campaign.open_home_store", in_use)
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "demo-1.html").write_text("")
    assert campaign("--status", "--home", str(tmp_path)) == 1
    assert f"in use; meanwhile see {tmp_path / 'campaigns' / 'demo-1.html'}" in capsys.readouterr().err


def test_detach_starts_the_controller_in_the_cluster(kfp, capsys):
    kfp.run = lambda submitted: None
    assert campaign("--host", kfp.host, "--detach", "--registry", "reg/team", "--tag", "7", *SETTINGS) == 0
    (run,) = kfp.known
    assert run["display_name"] == f"campaign {DEMO}"
    assert kfp.pipelines[0]["display_name"] == "burnish-campaign-demo"
    assert b"reg/team/validate:7" in kfp.uploads[0]
    assert "id-0" in capsys.readouterr().out


def test_the_pipelines_component_goes_through_the_same_command(kfp, tmp_path):
    class Page:
        path = str(tmp_path / "page.html")

    component.python_func(
        config=yaml.safe_dump({"name": "demo", "rounds": 2, "campaign": {"rounds": 5}}),
        overrides="campaign.rounds=4",
        placement="tag: '7'",
        kfp_host=kfp.host,
        kfp_namespace="",
        experiment="burnish",
        page=Page,
    )
    assert len(kfp.known) == 2
    assert b"burnish/update:7" in kfp.uploads[0]
    assert "Burnish campaign" in (tmp_path / "page.html").read_text()
