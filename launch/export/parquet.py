"""Rows of steps as one Parquet file, in row groups of bounded size. The only module that imports pyarrow."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any

from computerrl.common.errors import Problem, SetupError

_GROUP_BYTES = 64 << 20
"""Size of the screenshots after which a row group is written."""
_GROUP_ROWS = 1000


def require_pyarrow() -> None:
    """Raise `SetupError` where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        step = ".venv/bin/pip install 'computerrl[parquet]' or pyarrow alone, or use --format jsonl"
        raise SetupError(Problem("pyarrow", "not installed, and --format parquet needs it", step))


class StepTable:
    """A Parquet file of steps; a context manager."""

    def __init__(self, path: Path) -> None:
        """Raises `SetupError` where pyarrow is not installed."""
        require_pyarrow()
        import pyarrow.parquet

        self._schema = _schema()
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._num_bytes = 0

    def add(self, row: dict[str, Any]) -> None:
        """Add one step, as `launch.export.records.step_rows` gives it, with its screenshot as `{"bytes", "path"}` or None."""
        self._rows.append(row)
        self._num_bytes += len((row["screenshot"] or {}).get("bytes") or b"")
        if self._num_bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._num_bytes = [], 0

    def __enter__(self) -> StepTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()


def _schema() -> Any:
    import pyarrow as pa

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("image", pa.string())])
    return pa.schema(
        [
            *((name, pa.string()) for name in ("trajectory_id", "group_id", "order_id", "kind", "family")),
            ("seed", pa.int64()),
            ("instruction", pa.string()),
            ("reward", pa.float64()),
            ("success", pa.bool_()),
            ("end_reason", pa.string()),
            ("shown_by", pa.string()),
            ("outcome", pa.string()),
            ("started_at", pa.float64()),
            ("duration_s", pa.float64()),
            ("num_steps", pa.int32()),
            ("step", pa.int32()),
            ("screenshot", image),
            ("prompt", pa.list_(part)),
            ("completion", pa.string()),
            ("format_ok", pa.bool_()),
            ("action_error", pa.string()),
            ("places", pa.list_(pa.int32())),
            ("tokens", pa.list_(pa.string())),
            ("logprobs", pa.list_(pa.float64())),
            ("policy_versions", pa.list_(pa.int64())),
            ("advantage", pa.float64()),
        ]
    )
