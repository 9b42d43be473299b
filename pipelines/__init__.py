"""The DAG: pipelines/round.py is one round, pipelines/train.py the whole run, placement.py where each stage runs."""
