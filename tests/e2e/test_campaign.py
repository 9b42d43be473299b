"""`burnish campaign` on this machine, as people run it; the controller is killed without mercy in its second chunk."""

import subprocess
import sys

import yaml
from local_run import environment, kill_when
from test_resume import SMALL

from burnish.campaign.plan import campaign_id_of
from burnish.contracts.loading import parse_config
from burnish.store import open_store

CONFIG = SMALL | {
    "name": "chunks",
    "evaluate": {"samples": 1, "k": [1]},
    "campaign": {"rounds": 2, "evaluate_every": 0},
}
RUN_IDS = [f"{campaign_id_of(parse_config(CONFIG))}-000{number}" for number in (1, 2)]


def start(home, *arguments):
    (home / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "burnish.cli.main", "campaign", str(home / "config.yaml")),
            *("--home", str(home), "--no-mlflow", *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A store in a folder: nothing here is about the embedded server.
        env=environment(home) | {"BURNISH_STORE": str(home / "bucket")},
    )


def kill_at(home, run_id, line):
    log = home / "runs" / run_id / "run.log"
    kill_when(start(home), lambda: log.exists() and line in log.read_text())


def test_a_campaign_killed_in_its_second_chunk_goes_on_there(tmp_path, monkeypatch):
    kill_at(tmp_path, RUN_IDS[1], "round 2 - rollout: done")
    output, _ = start(tmp_path).communicate(timeout=300)
    assert "finished, 2 rounds in 2 chunks" in output, output
    assert "✓ chunk 1" not in output.partition("▶ chunk 2")[0], "the first chunk is not looked at again"

    monkeypatch.setenv("BURNISH_STORE", str(tmp_path / "bucket"))
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    store = open_store()
    assert store.run_ids() == RUN_IDS
    first, second = ({record.title: record for record in store.run_records(run_id)} for run_id in RUN_IDS)
    assert second["round 2 - rollout"].cached, "what was done before the kill is not done again"
    assert not second["round 2 - update"].cached
    assert second["sft"].outputs["policy"] == first["round 1 - update"].outputs["updated_policy"]
    assert not store.get_manifest(second["evaluate - before"].outputs["evaluation"]).blobs, "left out"
    assert second["evaluate - after"].metrics["pass@1"] is not None
    page = (tmp_path / "campaigns" / f"{RUN_IDS[0][:-5]}.html").read_text()
    assert f'href="../runs/{RUN_IDS[1]}/report.html"' in page
    assert (tmp_path / "runs" / RUN_IDS[1] / "report.html").exists()

    output, _ = start(tmp_path, "--status").communicate(timeout=60)
    assert "finished, 2 rounds in 2 chunks" in output
