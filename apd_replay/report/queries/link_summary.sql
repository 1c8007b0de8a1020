-- Each link P > D of one run: what was tried on it, and when it first failed, rejected, succeeded last and recovered.
SELECT prefill_worker, decode_worker, attempts, successes, real_failures, rejections, successes_after_latch,
    first_failure_t, first_rejection_t, last_rejection_t, last_success_t, recovered_t
FROM links WHERE experiment = $experiment AND replicate = $replicate
ORDER BY prefill_worker, decode_worker
