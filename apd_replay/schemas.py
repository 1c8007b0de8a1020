"""Every table, once: names, types and meaning of all columns.

Writers, readers, the database, the documentation and the tests take them from here, so that no reader guesses a type.
Times: `t` and `*_t` columns are seconds since the run's start; `ts` columns are UTC epoch seconds. Lengths are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """`type` is a DuckDB type name. `null` says that a value may be missing (unknown or not applicable; never 0 instead)."""

    name: str
    type: str
    doc: str
    null: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    doc: str
    columns: tuple[Column, ...]
    per_run: bool = False

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]


def _columns(text: str) -> tuple[Column, ...]:
    """One column a line: `name type[!] meaning`. `!` after the type: never null."""
    out = []
    for row in filter(None, map(str.strip, text.strip().splitlines())):
        name, kind, doc = row.split(maxsplit=2)
        out.append(Column(name, kind.rstrip("!"), doc, null=not kind.endswith("!")))
    return tuple(out)


RUN_KEY = _columns("""
    experiment  VARCHAR!  experiment id: one engine, one trace, one hardware
    replicate   INTEGER!  replicate number
""")

TURNS = Table("turns", "One row a turn of a trace.", _columns("""
    trace          VARCHAR!  name of the trace
    session        VARCHAR!  session id, always text
    turn           INTEGER!  turn in the session, from 0
    arrival_s      DOUBLE!   when the trace sent it, seconds since the trace's first send
    gap_s          DOUBLE    the previous answer's end to this send; null for turn 0
    gap_kind       VARCHAR   `think`: gap_s as defined; `arrival`: the trace has send times only, so service time is in the gap
    input_tokens   INTEGER!  length of the whole prompt
    output_tokens  INTEGER!  length of the answer
    shared_tokens  INTEGER   head of the prompt that repeats the previous prompt + answer; null for turn 0 or where unknown
    hash_ids       BIGINT[]  ids of the prompt's blocks, equal for equal prefixes; null where unknown
    block_size     INTEGER   tokens a block
"""))

RUNS = Table("runs", "One row a run.", _columns("""
    run_id        VARCHAR!  digest of all that decides the run
    experiment    VARCHAR!  experiment id
    replicate     INTEGER!  replicate number
    engine        VARCHAR!  `sglang`, `sim` or `imported`
    status        VARCHAR!  `complete`, `truncated` or `failed`
    trace         VARCHAR   name of the trace
    trace_digest  VARCHAR   sha256 of the trace's content
    cluster       VARCHAR   `2p6d`, `8dp`, ...
    hardware      VARCHAR   hardware file, or the machine
    policy        VARCHAR   policy that chooses the decode (or unified) worker
    time_scale    DOUBLE    divisor of the gaps
    concurrency   INTEGER   most requests in flight
    seed          BIGINT    seed of the run
    model         VARCHAR   model
    started_ts    DOUBLE    start of the run
    duration_s    DOUBLE    start to last answer
    requests      INTEGER   rows in requests
    errors        INTEGER   requests with status error
    planned       INTEGER   turns that the run was to send
    versions      JSON      versions of what ran
    config        JSON      the experiment as it was run
"""))

REQUESTS = Table("requests", "One row a request.", _columns("""
    request_id           VARCHAR!  unique in the run
    session              VARCHAR!  session
    turn                 INTEGER!  turn in the session, from 0
    path                 VARCHAR   `seed`, `direct`, `fallback` or `dp`; null where an imported run does not say
    prefill_worker       VARCHAR   the P that the router chose, also where a direct append left it unused
    decode_worker        VARCHAR   the D; under `dp` the worker
    scheduled_t          DOUBLE    when the turn was due; null where an imported run does not say
    dispatched_t         DOUBLE    when the first byte left, after any wait for concurrency, pause and admission
    first_token_t        DOUBLE    first non-empty delta
    finished_t           DOUBLE    end of the answer, or when the failure was known
    input_tokens         INTEGER   prompt; null where an imported run does not say
    cached_tokens        INTEGER   part of the prompt that was not computed again
    output_tokens        INTEGER   generated tokens
    admission            VARCHAR   `admitted`, `rejected` or `none`; null where an imported run does not say
    pause_ms             DOUBLE    time spent in backpressure pauses
    bootstrap_room       BIGINT    joins client, P and D
    status               VARCHAR!  `ok`, `error` or `truncated` (in flight when the run was cut: not an error)
    error_kind           VARCHAR   what failed: see the list of kinds
    error_message        VARCHAR   first 500 characters
    asked_output_tokens  INTEGER   answer length that was asked for
    finish_reason        VARCHAR   the server's word
    retractions          INTEGER   times the request was retracted
    slot_lost            BOOLEAN   a direct turn that had to compute its history again
    reported_latency_s   DOUBLE    latency as an imported client states it, where it keeps no times; else null
    reported_ttft_s      DOUBLE    time to the first token, likewise
"""), per_run=True)

PATHS = ("seed", "direct", "fallback", "dp")
STATUSES = ("ok", "error", "truncated")
ERROR_KINDS = ("kv_transfer", "peer_dead", "waiting_timeout", "bootstrap_timeout", "out_of_memory", "aborted",
               "client_timeout", "connection", "http_4xx", "http_5xx", "protocol")

ADMISSIONS = Table("admissions", "One row an admission call.", _columns("""
    t                      DOUBLE!   when the answer came
    ts                     DOUBLE!   the same, epoch
    session                VARCHAR!  session
    decode_worker          VARCHAR!  the D asked
    can_admit              BOOLEAN!  the answer
    queue_depth            INTEGER   transfer queue of the D
    pause_ms               DOUBLE    the hint that came with the answer
    latency_s              DOUBLE    call to answer
    available_tokens       BIGINT    free KV of the D
    evicted_session_count  INTEGER   idle sessions that the D evicted to answer
"""), per_run=True)

PAUSES = Table("pauses", "One row a backpressure pause of a send.", _columns("""
    t                      DOUBLE!   when the pause began
    ts                     DOUBLE!   the same, epoch
    decode_worker          VARCHAR!  the D paused for
    sleep_ms               DOUBLE!   length
    queue_depth_at_signal  INTEGER   transfer queue of the D when it gave the hint
"""), per_run=True)

BINDINGS = Table("bindings", "One row a session's first opening on a D.", _columns("""
    t              DOUBLE!   when
    ts             DOUBLE!   the same, epoch
    session        VARCHAR!  session
    decode_worker  VARCHAR!  the D
    turn           INTEGER   the turn that opened it
"""), per_run=True)

_LINE = """
    worker   VARCHAR!  `prefill-0`, `decode-3`, `worker-2`, `router`
    role     VARCHAR   `prefill`, `decode`, `unified` or `router`; null where the log does not say
    file     VARCHAR!  log file, relative to the run directory
    line     INTEGER!  physical line, from 1
    offset   BIGINT!   byte offset of that line
    launch   INTEGER!  server starts (`server_args=` lines) of this log up to this line: a file may hold two runs
    ts       DOUBLE    the line's own time as UTC epoch; null where it has none
    t        DOUBLE    seconds since the run's start; null where unknown
    dp_rank  INTEGER   rank tag
    tp_rank  INTEGER   rank tag
    pp_rank  INTEGER   rank tag
"""

WORKER_SAMPLES = Table("worker_samples", "One row a `Prefill batch` or `Decode batch` line.", _columns(_LINE + """
    kind                VARCHAR!  `prefill` or `decode`
    running             INTEGER   #running-req
    queued              INTEGER   #queue-req
    new_seqs            INTEGER   #new-seq
    new_tokens          INTEGER   #new-token: computed in this batch (a chunk)
    cached_tokens       INTEGER   #cached-token
    pending_tokens      INTEGER   #pending-token: prompt tokens still waiting to be computed
    used_tokens         BIGINT    #token (or #full token)
    token_usage         DOUBLE    token usage (or full token usage), 0 to 1, two decimals
    preallocated_usage  DOUBLE    pre-allocated usage
    bootstrap_queue     INTEGER   P: #bootstrap-req, #prealloc-req (0.5.3 to 0.5.11), #unbootstrapped-req
    inflight_queue      INTEGER   P: #inflight-req, #transferring-req
    prealloc_queue      INTEGER   D: #prealloc-req
    transfer_queue      INTEGER   D: #transfer-req
    retracted           INTEGER   D: #retracted-req
    throughput          DOUBLE    input or gen throughput, tokens/s
    rest                JSON      keys and values that have no column
"""), per_run=True)

WORKER_EVENTS = Table("worker_events", "One row an event line.", _columns(_LINE + """
    kind     VARCHAR!  see the list of kinds
    session  VARCHAR   agent session
    room     BIGINT    bootstrap room
    peer     VARCHAR   the other side: `ip:port`
    peer_worker VARCHAR the other side's worker, found through the rooms that both know; null where none does
    tokens   BIGINT    tokens freed, retracted, pool size
    detail   VARCHAR   the message
    rest     JSON      values that have no column
"""), per_run=True)

EVENT_KINDS = ("pool_size", "ready", "trim", "retract", "transfer_error", "link_latched", "peer_dead", "waiting_timeout",
               "bootstrap_timeout", "abort", "oom_abort", "session_open", "session_close", "session_release",
               "session_timeout", "heartbeat_lost", "peer_recovered", "mooncake_timeout", "exception", "crash",
               "watchdog", "cache_flush", "pool_leak")

TRANSFERS = Table("transfers", "One row a bootstrap room: client request, P line and D line joined.", _columns("""
    room            BIGINT!   bootstrap room
    session         VARCHAR   session
    turn            INTEGER   turn
    prefill_worker  VARCHAR   P
    decode_worker   VARCHAR   D
    started_t       DOUBLE    dispatch of the request
    ended_t         DOUBLE    first token, or the failure
    outcome         VARCHAR!  `ok`, `real_failure`, `rejection`, `waiting_timeout`, `bootstrap_timeout`, `aborted`, `other` or `unknown`
    wait_s          DOUBLE    dispatch to outcome
    shard           INTEGER   transfer queue on the P (sum of the D's ports modulo the number of queues)
    p_kind          VARCHAR   the P's first event about the room (see the kinds of worker_events)
    p_t             DOUBLE    when, by the P's clock
    p_file          VARCHAR   where it stands
    p_line          INTEGER   where it stands
    d_kind          VARCHAR   the D's first event about the room
    d_t             DOUBLE    when, by the D's clock
    d_file          VARCHAR   where it stands
    d_line          INTEGER   where it stands
"""), per_run=True)

LOG_FILES = Table("log_files", "One row a log file: what was understood of it, and by which clock it is read.", _columns("""
    worker           VARCHAR!   worker
    role             VARCHAR    roles seen in it, joined by `+`
    file             VARCHAR!   log file
    lines            BIGINT!    physical lines = rows + known + cut + unknown + over_long
    bytes            BIGINT!    size, unpacked
    row_lines        BIGINT!    lines that gave a row
    known_lines      BIGINT!    lines that a rule knows and that hold nothing to keep
    cut_lines        BIGINT!    lines whose head is known and whose end is missing
    unknown_lines    BIGINT!    lines that no rule knows
    over_long_lines  BIGINT!    lines above the limit: counted, not read
    bad_utf8_lines   BIGINT!    lines with bytes that are not UTF-8; they are read all the same
    cut_last_line    BOOLEAN!   the file does not end with a newline
    launches         INTEGER!   server starts (`server_args=` lines)
    ranks            VARCHAR[]! rank tags seen, one entry a combination
    engine_address   VARCHAR    `ip:port` of the worker's transfer engine (Mooncake session)
    clock_offset_s   DOUBLE     the log's clock minus UTC, seconds; null where no line has a time
    clock_basis      VARCHAR!   how that is known
    counts           JSON!      lines by kind
    server_args      JSON       arguments of the last server start
"""), per_run=True)

REQUEST_STATS = Table("request_stats", "One row a request that a worker reported on: ReqTimeStats lines, request logs, exported metrics.", _columns(_LINE + """
    source            VARCHAR!  `time_stats`, `request_log` or `export`
    side              VARCHAR   `prefill`, `decode` or `unified`
    rid               VARCHAR   the request's id on the worker
    room              BIGINT    bootstrap room
    input_tokens      INTEGER   prompt
    cached_tokens     INTEGER   on a D this repeats the P's hit
    output_tokens     INTEGER   generated
    bootstrap_ms      DOUBLE    hand-shake between P and D
    alloc_wait_ms     DOUBLE    D: waiting for space
    transfer_ms       DOUBLE    D: space reserved until KV complete, the P's own queue and computing included
    queue_ms          DOUBLE    waiting for a batch
    forward_ms        DOUBLE    computing
    entry_ts          DOUBLE    when the worker took it, UTC epoch
    transfer_mb       DOUBLE    P: KV sent
    transfer_gb_s     DOUBLE    P: as the worker states it (last chunk only with mooncake: do not use as a rate)
    latency_s         DOUBLE    request logs and exports: end to end
    finish_reason     VARCHAR   request logs and exports
    rest              JSON      values that have no column
"""), per_run=True)

LOADS = Table("loads", "Load snapshots, where the experiment asks for them.", _columns("""
    worker                VARCHAR!  worker
    t                     DOUBLE!   when it was read
    ts                    DOUBLE!   the same, epoch
    running               INTEGER   running requests
    waiting               INTEGER   waiting requests
    used_tokens           BIGINT    used KV tokens
    total_tokens          BIGINT    size of the pool
    token_usage           DOUBLE    0 to 1
    transfer_queue        INTEGER   D: transfer queue
    prealloc_queue        INTEGER   D: prealloc queue
    retracted             INTEGER   D: retracted queue
    rest                  JSON      the snapshot as it came
"""), per_run=True)

UNKNOWN_LINES = Table("unknown_lines", "Lines that no rule knows, by shape.", _columns("""
    worker   VARCHAR!  worker
    file     VARCHAR!  log file
    shape    VARCHAR!  the line with numbers, hex and quoted text replaced
    count    BIGINT!   lines of that shape
    example  VARCHAR   the first such line, cut at 300 characters
    line     INTEGER   where that one stands
"""), per_run=True)

EVIDENCE = Table("evidence", "What a claim's SQL found.", _columns("""
    engine      VARCHAR!  engine of the runs
    trace       VARCHAR!  trace of the runs
    claim       VARCHAR!  `s0` ... `headline`
    metric      VARCHAR!  name of the figure
    experiment  VARCHAR   experiment id; null where it spans several
    replicate   INTEGER   null: over all replicates
    scope       VARCHAR   worker, session, bin, link, path; null: the run
    value       DOUBLE    the figure; `inf` where failed turns decide a quantile
    low         DOUBLE    interval, where there is one
    high        DOUBLE    interval, where there is one
    unit        VARCHAR   unit
    n           INTEGER   replicates (or rows) behind it
"""))

VERDICTS = Table("verdicts", "One row per claim, engine and trace.", _columns("""
    claim        VARCHAR!   `s0` ... `headline`
    engine       VARCHAR!   engine of the runs
    trace        VARCHAR!   trace of the runs
    statement    VARCHAR!   the claim as stated
    structural   VARCHAR    `strong`, `medium`, `weak` or null
    impact       VARCHAR    impact as the seed report put it
    verdict      VARCHAR!   `holds`, `partly`, `refuted`, `provisional`, `undecided` or `withdrawn`
    leaning      VARCHAR    where an undecided or provisional one points: `holds` or `refuted`
    n            INTEGER    replicates on the thinner side
    effect       DOUBLE     the primary metric's effect
    effect_low   DOUBLE     interval
    effect_high  DOUBLE     interval
    unit         VARCHAR    unit of the effect
    experiments  VARCHAR[]  experiments used
    runs         VARCHAR[]  run ids used
    confounders  VARCHAR[]  what else could explain it
    fix          VARCHAR    the remedy
    fix_effect   VARCHAR    what the remedy changed
    notes        VARCHAR    what decided, in plain words
"""))

TABLES = {t.name: t for t in (TURNS, RUNS, REQUESTS, ADMISSIONS, PAUSES, BINDINGS, WORKER_SAMPLES, WORKER_EVENTS,
                              TRANSFERS, REQUEST_STATS, LOG_FILES, LOADS, UNKNOWN_LINES, EVIDENCE, VERDICTS)}


def arrow(table: Table) -> pa.Schema:
    """The table as an Arrow schema; run tables get `experiment` and `replicate` in front."""
    import pyarrow as pa

    types = {"VARCHAR": pa.string(), "JSON": pa.string(), "INTEGER": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(),
             "BOOLEAN": pa.bool_(), "BIGINT[]": pa.list_(pa.int64()), "VARCHAR[]": pa.list_(pa.string())}
    columns = (RUN_KEY if table.per_run else ()) + table.columns
    return pa.schema([pa.field(c.name, types[c.type], nullable=c.null) for c in columns])
