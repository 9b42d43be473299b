import threading

from mlflow import MlflowClient

from burnish.contracts.artifacts import StageRecord
from burnish.contracts.loading import parse_config
from burnish.track import run as track_run

CONFIG = parse_config({"name": "run", "rounds": 2, "track": {"experiment": "tests"}})


def active_runs(database, run_id):
    client = MlflowClient(database)
    experiment = client.get_experiment_by_name("tests")
    return client.search_runs([experiment.experiment_id], f"tags.`burnish.run_id` = '{run_id}'")


def test_two_stages_that_sync_for_the_first_time_at_once_share_one_run(send, database, monkeypatch):
    send([], "warm")
    meeting = threading.Barrier(2)
    real = track_run._runs

    def look_together(client, experiment_id, run_id):
        found = real(client, experiment_id, run_id)
        if not found:
            # Nobody makes a run before both have seen that there is none.
            meeting.wait(30)
        return found

    monkeypatch.setattr(track_run, "_runs", look_together)
    results = []
    threads = [threading.Thread(target=lambda: results.append(send([], "race"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert len(active_runs(database, "race")) <= 2
    last = send([], "race")
    assert last.problem is None
    assert [run.info.run_id for run in active_runs(database, "race")] == [last.run]
    assert last.run in {result.run for result in results}


def test_the_oldest_of_two_runs_is_kept_and_gets_everything(send, database):
    client = MlflowClient(database)
    send([], "warm")
    experiment = client.get_experiment_by_name("tests").experiment_id
    young = client.create_run(experiment, start_time=2000, tags={"burnish.run_id": "twice"}).info.run_id
    old = client.create_run(experiment, start_time=1000, tags={"burnish.run_id": "twice"}).info.run_id
    found = send([], "twice")
    assert (found.run, found.problem) == (old, None)
    assert client.get_run(young).info.lifecycle_stage == "deleted"
    assert client.get_run(old).data.params["rounds"] == "2"


def test_an_experiment_that_another_stage_made_first_is_taken(send, monkeypatch):
    real = MlflowClient.get_experiment_by_name
    answers = iter([None])
    send([], "warm")
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda self, name: next(answers, real(self, name)))
    assert send([], "second to come").problem is None


def test_tags_name_code_images_and_the_clusters_run(send, database, monkeypatch):
    monkeypatch.setenv("BURNISH_GIT_SHA", "abc")
    monkeypatch.setenv("KFP_RUN_ID", "kfp-1")
    monkeypatch.setenv("BURNISH_STORE", "s3://key:secret@bucket/prefix")
    update = StageRecord(run_id="tags", stage="update", round=1, key="u", image="registry/update@sha256:1")
    found = send([update], "tags")
    tags = MlflowClient(database).get_run(found.run).data.tags
    assert (tags["git_sha"], tags["kfp_run_id"]) == ("abc", "kfp-1")
    assert tags["image.update"] == "registry/update@sha256:1"
    assert tags["burnish.store"] == "s3://bucket/prefix"
    send([update, StageRecord(run_id="tags", stage="execute", round=1, key="e", image="registry/execute:1")], "tags")
    tags = MlflowClient(database).get_run(found.run).data.tags
    assert (tags["image.update"], tags["image.execute"]) == ("registry/update@sha256:1", "registry/execute:1")


def test_a_chunk_of_a_campaign_lies_under_its_parent(send, database, monkeypatch):
    parent = send([], "campaign").run
    monkeypatch.setenv("MLFLOW_PARENT_RUN_ID", parent)
    child = send([], "chunk").run
    assert child != parent
    assert MlflowClient(database).get_run(child).data.tags["mlflow.parentRunId"] == parent


def test_chunks_of_a_campaign_lie_under_its_run_in_which_their_curves_go_on(send, database):
    client = MlflowClient(database)

    def chunk(number, rounds):
        start = {"campaign": "of-chunks", "round": rounds[0] - 1, "total_rounds": 4}
        config = parse_config({"name": "run", "rounds": len(rounds), "track": {"experiment": "tests"}, "start": start})
        records = [
            StageRecord(
                run_id=f"of-chunks-{number}", stage="reward", round=round, key="r", metrics={"reward/mean": round / 4}
            )
            for round in rounds
        ]
        for label, value in (("before", rounds[0]), ("after", rounds[-1])):
            metrics = {"pass@1": value / 10}
            records.append(StageRecord(run_id="r", stage="evaluate", label=label, key="e", metrics=metrics))
        for _ in range(2):
            child = send(records, f"of-chunks-{number}", config, status="FINISHED").run
        return client.get_run(child)

    first, second = chunk(1, [1, 2]), chunk(2, [3, 4])
    parent = client.get_run(first.data.tags["mlflow.parentRunId"])
    assert second.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert [found.info.run_name for found in (parent, first, second)] == ["of-chunks", "run 1-2", "run 3-4"]
    assert (parent.info.status, parent.data.tags["burnish.run_id"]) == ("FINISHED", "of-chunks")
    assert parent.data.params["update.preset"] == "grpo"

    def curve(run, name):
        return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]

    assert curve(parent, "reward/mean") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert curve(second, "reward/mean") == [(3, 0.75), (4, 1.0)]
    assert curve(parent, "eval/after/pass_at_1") == [(2, 0.2), (4, 0.4)]
    assert curve(parent, "eval/before/pass_at_1") == [(0, 0.1)], "before is before the campaign"


def test_the_description_says_what_came_out_and_keeps_what_a_person_wrote(send, database, monkeypatch):
    monkeypatch.setenv("BURNISH_STORE", "s3://bucket/prefix")
    client = MlflowClient(database)
    run = send([], "note", headline="pass@1 0.2 to 0.4").run
    note = client.get_run(run).data.tags["mlflow.note.content"]
    assert note.startswith("**pass@1 0.2 to 0.4**")
    assert "report.html" in note
    assert "s3://bucket/prefix" in note
    send([], "note", headline="pass@1 0.2 to 0.5")
    assert "0.5" in client.get_run(run).data.tags["mlflow.note.content"]
    client.set_tag(run, "mlflow.note.content", "mine")
    send([], "note", headline="pass@1 0.2 to 0.6")
    assert client.get_run(run).data.tags["mlflow.note.content"] == "mine"
