"""What the peer scripts share: shapes for random weights, from the published config.json files, and the
loop in which busy.py asks a peer for one measurement after another."""
import json
import sys
import time


def llama(hidden, ffn, layers, heads, kv_heads, head_dim, vocab, context, theta, *, tied, eps=1e-5, **more):
    """What transformers.LlamaConfig takes, and a config.json beside the model type."""
    return dict(hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                vocab_size=vocab, max_position_embeddings=context, rope_theta=theta,
                tie_word_embeddings=tied, rms_norm_eps=eps, **more)


LLAMA3_ROPE = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=8192)
SHAPES = {
    "tiny-16m": llama(384, 1024, 8, 6, 2, 64, 8192, 16384, 500000.0, tied=True),
    "smollm2-135m": llama(576, 1536, 30, 9, 3, 64, 49152, 8192, 100000.0, tied=True),
    "llama-3.2-1b": llama(2048, 8192, 16, 32, 8, 64, 128256, 131072, 500000.0, tied=True,
                          rope_scaling=LLAMA3_ROPE),
    "llama-3.1-8b": llama(4096, 14336, 32, 32, 8, 128, 128256, 131072, 500000.0, tied=False,
                          rope_scaling={**LLAMA3_ROPE, "factor": 8.0}),
}


def timed(step, seconds):
    """Times of step(), which returns its own seconds: at least one, and more until they add up to
    `seconds`."""
    times = [step()]
    while sum(times) < seconds:
        times.append(step())
    return times


def serve(facts, measure):
    """Prints `facts` as a JSON line, then answers every line of stdin, the JSON arguments of
    measure(phase, tokens, threads, seconds), with a JSON line of what that returns: the seconds of each
    prompt or decode step. Sleeps between, so that it does not disturb others."""
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), flush=True)


def clock(work):
    """Seconds that work() takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
