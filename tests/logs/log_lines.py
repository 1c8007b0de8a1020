"""Lines of every SGLang version and every trap, written for these tests after the described formats; none is copied from a log."""

from __future__ import annotations

T = "[2026-05-05 16:00:03] "
ROOM = 4611686018427387903

# (version, tag, line, the columns that it must give)
BATCHES: list[tuple[str, str, dict[str, object]]] = [
    ("0.3", "[16:43:29 TP0] Prefill batch. #new-seq: 4, #new-token: 8192, #cached-token: 291, cache hit rate: 2.76%, token usage: 0.04, #running-req: 1, #queue-req: 38",
     {"kind": "prefill", "new_seqs": 4, "new_tokens": 8192, "cached_tokens": 291, "token_usage": 0.04, "running": 1, "queued": 38, "ts": None}),
    ("0.4.0", T + "Decode batch. #running-req: 8, #token: 67724, token usage: 0.13, gen throughput (token/s): 183.54, #queue-req: 0",
     {"kind": "decode", "running": 8, "used_tokens": 67724, "token_usage": 0.13, "throughput": 183.54, "queued": 0, "preallocated_usage": None}),
    ("0.4.6 P", T + "Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #unbootstrapped-req: 3, #queue-req: 2, #transferring-req: 4 ",
     {"kind": "prefill", "bootstrap_queue": 3, "inflight_queue": 4, "queued": 2, "role": "prefill"}),
    ("0.4.6 D", "[2026-05-05 16:00:03 DP3 TP25] Decode batch. #running-req: 43, #token: 0, token usage: 0.00, pre-allocated usage: 0.10, cuda graph: True, gen throughput (token/s): 385.00, #queue-req: 0",
     {"kind": "decode", "preallocated_usage": 0.1, "prealloc_queue": None, "transfer_queue": None, "dp_rank": 3, "tp_rank": 25, "role": "decode"}),
    ("0.5.0", T + "Decode batch. #running-req: 64, #token: 111660, token usage: 0.41, cuda graph: True, gen throughput (token/s): 2819.91, #queue-req: 0, ",
     {"kind": "decode", "running": 64, "queued": 0}),
    ("0.5.3 P", T + "Prefill batch. #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 1, #prealloc-req: 6, #inflight-req: 2, ",
     {"kind": "prefill", "bootstrap_queue": 6, "prealloc_queue": None, "inflight_queue": 2, "throughput": None, "role": "prefill"}),
    ("0.5.4 D", T + "Decode batch [51341], #running-req: 3, #token: 9, token usage: 0.67, pre-allocated usage: 0.20, #prealloc-req: 6, #transfer-req: 5, #retracted-req: 1, cuda graph: True, gen throughput (token/s): 14806.57, #queue-req: 0, ",
     {"kind": "decode", "prealloc_queue": 6, "transfer_queue": 5, "retracted": 1, "bootstrap_queue": None, "role": "decode"}),
    ("0.5.9", T + "Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 0, token usage: 0.01, #running-req: 0, #queue-req: 0, input throughput (token/s): 45.65, cuda graph: False",
     {"kind": "prefill", "throughput": 45.65}),
    ("0.5.10", T + "Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 0, token usage: 0.01, #running-req: 0, #queue-req: 0, cuda graph: False, input throughput (token/s): 45.65",
     {"kind": "prefill", "throughput": 45.65}),
    ("0.5.14 P", T + "Prefill batch, #new-seq: 2, #new-token: 8192, #cached-token: 10, token usage: 0.50, #running-req: 0, #queue-req: 3, #pending-token: 46401, #bootstrap-req: 1, #inflight-req: 7, cuda graph: False, input throughput (token/s): 565264.55",
     {"kind": "prefill", "pending_tokens": 46401, "bootstrap_queue": 1, "inflight_queue": 7, "throughput": 565264.55, "role": "prefill"}),
    ("0.5.16", T + "Decode batch, #running-req: 1, #full token: 165376, full token usage: 0.02, #swa token: 768, swa token usage: 0.50, accept len: 5.30, accept rate: 0.86, cuda graph: True, gen throughput (token/s): 167.04, #queue-req: 0",
     {"kind": "decode", "used_tokens": 165376, "token_usage": 0.02}),
    ("0.5.18 P", T + "Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, #bootstrap-req: 0, #inflight-req: 1, #optimistic-req: 2, npu graph: False, input throughput (token/s): 1.00",
     {"kind": "prefill", "inflight_queue": 1, "role": "prefill"}),
    ("0.5.23 D", "[2026-05-05 16:00:03.123 DP1 PP2 ATTN_CP0 MOE_DP1 TP4 EP4] Decode batch, #running-req: 1, #token: 5, token usage: 1.00, pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #host-receive-req: 3, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 1.00, #queue-req: 0, est. decode TFLOPS/s (per GPU): 12.50, fwd occupancy: 93.10%",
     {"kind": "decode", "dp_rank": 1, "pp_rank": 2, "tp_rank": 4, "token_usage": 1.0, "ts": 1777996803.123}),
    ("0.5.23 mamba", T + "Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, full token usage: 0.20, mamba usage: 0.30, #running-req: 0, #queue-req: 0, #pending-token: 0, #replay-token: 9, cpu graph: False, input throughput (token/s): 1.00",
     {"kind": "prefill", "token_usage": 0.2}),
]  # fmt: skip

_FAILED = "failed for request rank=0 {o}req.rid='s1-2' {o}req.bootstrap_room={r} with exception KVTransferError(bootstrap_room={r}): "
P_FAILED = "Prefill transfer " + _FAILED.format(o="", r=ROOM)
D_FAILED = "Decode transfer " + _FAILED.format(o="decode_req.", r=ROOM)

# (line, kind, the columns that it must give)
EVENTS: list[tuple[str, str, dict[str, object]]] = [
    (T + "max_total_num_tokens=98304, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=128, context_len=131072", "pool_size", {"tokens": 98304}),
    (T + "The server is fired up and ready to roll!", "ready", {}),
    (T + "Session trim: evicted 2 idle sessions, 13088 tokens freed", "trim", {"tokens": 13088}),
    (T + "Session trim: evicted 1 idle session, 7 tokens freed", "trim", {"tokens": 7}),
    (T + "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.1474 -> 0.1845", "retract", {}),
    (T + "KV cache pool is full. Retract requests. #retracted_reqs: 2, #aborted_retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.2", "retract", {}),
    (T + "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 0, #new_token_ratio: 0.1 -> 0.2", "retract", {"tokens": 0}),
    (T + "retract_decode: aborted last request abc due to OOM", "oom_abort", {}),
    (T + "Cache flushed successfully!", "cache_flush", {}),
    (T + "Session opened: s 1 (active=3)", "session_open", {"session": "s 1"}),
    (T + "Session closed: s (active=2) (active=8)", "session_close", {"session": "s (active=2)"}),
    (T + "Session KV released: mB (120 tokens freed)", "session_release", {"session": "mB", "tokens": 120}),
    (T + "Session s7 timed out, closing.", "session_timeout", {"session": "s7"}),
    (T + "Session 10.0.0.3:15102 failed.", "link_latched", {"peer": "10.0.0.3:15102", "session": None, "role": "prefill"}),
    (T + "Session 10.0.0.3:15102 recovered via probe; un-blacklisted", "peer_recovered", {"peer": "10.0.0.3:15102"}),
    (T + P_FAILED + f"Failed to send kv chunk of {ROOM} to 10.0.0.3:41002", "transfer_error", {"room": ROOM, "peer": "10.0.0.3:41002", "role": "prefill"}),
    (T + P_FAILED + "Decode instance could be dead, remote mooncake session 10.0.0.3:15102 is not alive", "peer_dead", {"room": ROOM, "peer": "10.0.0.3:15102"}),
    (T + P_FAILED + f"Request {ROOM} timed out after 300.0s in KVPoll.Bootstrapping", "bootstrap_timeout", {"room": ROOM}),
    (T + P_FAILED + "Aborted by AbortReq.", "abort", {"room": ROOM}),
    (T + D_FAILED + "Failed to get kvcache from prefill instance, it might be dead", "transfer_error", {"room": ROOM, "role": "decode"}),
    (T + D_FAILED + "Decode instance could be dead, remote mooncake session 10.0.0.3:15102 is not alive", "transfer_error", {"role": "decode"}),
    (T + D_FAILED + f"Request {ROOM} timed out after 300.0s in KVPoll.WaitingForInput", "waiting_timeout", {"room": ROOM}),
    (T + f"Decode transfer failed for request decode_req.req.rid='a' decode_req.req.bootstrap_room={ROOM}", "transfer_error", {"room": ROOM, "role": "decode"}),
    (T + "Lost connection with prefill instance (bootstrap_addr: 10.0.0.1:8998), 3 requests affected", "heartbeat_lost", {"peer": "10.0.0.1:8998"}),
    (T + f"NIXL transport error for room {ROOM}: NIXL_ERR_REMOTE_DISCONNECT", "transfer_error", {"room": ROOM}),
    (T + "Watchdog timeout (self.watchdog_timeout=300)", "watchdog", {}),
    (T + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog", {}),
    (T + "SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "crash", {}),
    (T + "Received sigquit from a child proces. It usually means the child failed.", "crash", {}),
    (T + "Subprocess scheduler_0 (pid=12) crashed with exit code -9.", "crash", {}),
    (T + "pool memory leak detected! [full] total=9, available=1, session_held=8", "pool_leak", {}),
    (T + "[http_server] Error: Request is disconnected from the client side (type 1). Abort request obj.rid='r'", "abort", {}),
]  # fmt: skip

GLOG_TIMEOUT = "I0505 16:00:04.250000  1014 transfer_engine_py.cpp:214] Sync batch data transfer timeout after 32000000000ns"
TRACEBACK = [T.replace("]", " TP4]") + "Scheduler hit an exception: Traceback (most recent call last):", '  File "/x/scheduler.py", line 9, in run', "    scheduler.event_loop_overlap_disagg_decode()",
             "ValueError: pool memory leak detected! [full] total=9, session_held=8", "[swa] total=1, available=1", "", "During handling of the above exception, another exception occurred:", "",
             "Traceback (most recent call last):", '  File "/x/other.py", line 1, in stop', "RuntimeError: second"]  # fmt: skip
STATS = T + f"ReqTimeStats(rid=r1, bootstrap_room={ROOM}, input_len=16384, cached_input_len=64, output_len=8, type=decode): bootstrap_duration=0.36ms, alloc_wait_duration=0.56ms, transfer_duration=92.28ms, queue_duration=0.23ms, forward_duration=21.64ms, entry_time=1777967999.720, #retries=0"
ACCESS = T + 'INFO:     10.0.0.1:5000 - "POST /generate HTTP/1.1" 200 OK'
ROUTER = '2026-05-05 08:00:03  INFO http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" request_id="gnt-x"}: smg::request: /b/middleware.rs:310: started processing request'
SERVER_ARGS = T + "server_args=ServerArgs(model_path='m, (odd)', disaggregation_mode='{mode}', tp_size=1, extra={{'a': [1, 2]}})"
SERVER_ARGS_DICT = T + "server_args={{'model_path': 'm', 'disaggregation_mode': '{mode}', 'tp_size': 8}}"
