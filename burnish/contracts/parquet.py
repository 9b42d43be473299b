"""Records in parquet files: the schema and its version in the file's metadata, every row validated on read."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.contracts.errors import ContractError
from burnish.contracts.records import Record

RecordT = TypeVar("RecordT", bound=Record)

# Free-form values are JSON text inside parquet: their keys differ from row to row.
_JSON_FIELDS = {"messages", "verifier", "metadata", "components"}
_BATCH_ROWS = 1024


def write_records(path: Path, records: Iterable[RecordT], record_type: type[RecordT]) -> int:
    """Write `records` to the parquet file `path`; returns the number of rows. Memory stays at one batch.

    Raises ContractError when a row contradicts itself.
    """
    _keep_pandas_out()
    schema = record_type.SCHEMA.with_metadata({"record": record_type.NAME, "schema_version": str(record_type.VERSION)})
    count = 0
    batch: list[dict[str, Any]] = []
    with pq.ParquetWriter(path, schema) as writer:
        for record in records:
            record.check()
            batch.append(_to_row(record))
            count += 1
            if len(batch) == _BATCH_ROWS:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return count


def iter_records(path: Path, record_type: type[RecordT]) -> Iterator[RecordT]:
    """The rows of `path`, validated, one batch in memory at a time. Raises ContractError."""
    try:
        parquet = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ContractError(f"{path.name}: not a readable parquet file: {error}") from None
    with parquet:
        _check_schema(path, parquet.schema_arrow, record_type)
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
            for row in batch.to_pylist():
                record = _from_row(row, record_type)
                record.check()
                yield record


def read_records(path: Path, record_type: type[RecordT]) -> list[RecordT]:
    """All rows of `path`, validated. Raises ContractError."""
    return list(iter_records(path, record_type))


def _check_schema(path: Path, found: pa.Schema, record_type: type[Record]) -> None:
    metadata = found.metadata or {}
    name = metadata.get(b"record", b"").decode()
    version = metadata.get(b"schema_version", b"").decode()
    if name != record_type.NAME:
        raise ContractError(f"{path.name}: holds records of type {name or 'unknown'!r}, expected {record_type.NAME!r}")
    if version != str(record_type.VERSION):
        raise ContractError(
            f"{path.name}: {name} schema version {version}, this burnish reads {record_type.VERSION}; "
            "use the burnish version that wrote it"
        )
    if not found.equals(record_type.SCHEMA, check_metadata=False):
        differing = set(found.names) ^ set(record_type.SCHEMA.names)
        detail = ", ".join(sorted(differing)) or "types differ"
        raise ContractError(f"{path.name}: columns do not match the {name} schema ({detail})")


class _NoPandas:
    """A finder under which `import pandas` fails."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _keep_pandas_out() -> None:
    """pyarrow imports pandas (half a second) to see whether the first list it converts is one of pandas' own."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


def _to_row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in dataclasses.fields(record):
        value = getattr(record, column.name)
        if column.name in _JSON_FIELDS and value is not None:
            value = json.dumps(value, ensure_ascii=False, sort_keys=True)
        row[column.name] = value
    return row


def _from_row(row: dict[str, Any], record_type: type[RecordT]) -> RecordT:
    values = {
        name: json.loads(value) if name in _JSON_FIELDS and value is not None else value for name, value in row.items()
    }
    return record_type(**values)
