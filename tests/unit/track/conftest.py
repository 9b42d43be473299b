import pytest

from burnish.contracts.loading import parse_config
from burnish.track.sync import sync_run

CONFIG = parse_config({"name": "run", "rounds": 2, "track": {"experiment": "tests", "tags": {"team@a": "x"}}})


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    # Making the tables takes seconds, so the tests share one database and each takes its own run id.
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def send(database, monkeypatch, tmp_path):
    # Without a server, MLflow puts artifacts into the working directory.
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_PARENT_RUN_ID", "MLFLOW_TRACKING_URI", "BURNISH_STORE"):
        monkeypatch.delenv(name, raising=False)

    def send(records, run_id, config=CONFIG, **more):
        return sync_run(records, run_id, config, tracking_uri=database, **more)

    return send
