import os
import subprocess
import sys
import time

import pytest

from burnish.contracts.artifacts import StageRecord
from burnish.track.load import LoadSampler, own_processes, parse_gpus
from burnish.track.points import load_points


def burn(seconds: float) -> None:
    started = time.process_time()
    while time.process_time() - started < seconds:
        pass


def test_even_a_short_block_leaves_one_row_of_what_it_took():
    before = time.time()
    with LoadSampler() as load:
        burn(0.2)
    (row,) = load.rows
    # Times are rounded to a millisecond, CPU seconds to the kernel's tick of 10 ms.
    assert before <= row["time"] <= time.time() + 0.001
    assert 0 < row["cpu_cores"] < 1.5
    assert row["memory_mb"] > 10


def test_a_child_process_counts():
    program = "import time; held = b'x' * (64 << 20); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            processes = {pid: memory for (pid, _), (_, memory) in own_processes().items()}
        finally:
            child.kill()
    assert processes[child.pid] > 64
    assert os.getpid() in processes
    assert 1 not in processes or os.getpid() == 1


def test_a_long_block_keeps_a_bounded_number_of_rows_from_start_to_end():
    with LoadSampler(interval=0.01, max_rows=8) as load:
        started = time.time()
        time.sleep(1.0)
    assert 2 <= len(load.rows) <= 9
    times = [row["time"] for row in load.rows]
    assert times == sorted(times)
    assert times[0] - started < 0.8
    assert times[-1] - times[0] > 0.1


def test_an_error_inside_the_block_passes_through_and_ends_the_thread():
    load = LoadSampler(interval=0.01)
    with pytest.raises(ValueError, match="mine"), load:
        raise ValueError("mine")
    assert not load._thread.is_alive()


def test_gpu_figures_are_read_and_what_is_not_measured_is_left_out():
    assert parse_gpus("0, 87, 10240, 310.25\n1, [N/A], 512, [Not Supported]\n") == {
        "gpu_0_utilization_percentage": 87.0,
        "gpu_0_memory_usage_mb": 10240.0,
        "gpu_0_power_usage_watts": 310.25,
        "gpu_1_memory_usage_mb": 512.0,
    }


def test_a_driver_that_fails_costs_the_figures_and_nothing_else(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexit 9\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with LoadSampler() as load:
        pass
    assert set(load.rows[0]) == {"time", "cpu_cores", "memory_mb"}
    smi.write_text("#!/bin/sh\necho '0, 50, 100, 20.5'\n")
    with LoadSampler() as load:
        pass
    assert load.rows[0]["gpu_0_utilization_percentage"] == 50.0


def test_steps_of_the_load_are_seconds_since_the_runs_start():
    rows = [{"time": 100.0, "cpu_cores": 1.5}, {"time": 107.25, "cpu_cores": 2.0, "gpu_0_utilization_percentage": 9.0}]
    record = StageRecord(run_id="r", stage="rollout", round=1, key="k", load=rows)
    assert load_points(record, start_ms=97_000) == [
        ("system/rollout/cpu_cores", 1.5, 100_000, 3),
        ("system/rollout/cpu_cores", 2.0, 107_250, 10),
        ("system/rollout/gpu_0_utilization_percentage", 9.0, 107_250, 10),
    ]
