#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "bench/speculation/bench_engines.h"
#include "bench/step_log.h"
#include "decode/generate.h"
#include "speculate/round/rounds.h"

namespace tandem::bench {

/// Prompts of a benchmark: windows of a text or lines of a file, random tokens where the model has
/// no tokenizer.
struct BenchPrompts {
  std::string source;
  std::vector<std::vector<std::vector<int32_t>>> batches;  // [batches][batch][context at most]
  int distinct = 0;                                        // windows
  bool overlap = false;  // the text is shorter than all of them together

  double mean_tokens() const;
};

/// How a benchmark decodes.
struct MeasureSpec {
  decode::GenerateSpec how;      // max_tokens: of a sequence, which may also end at a stop id
  int warm_ups = 1;              // runs of each way that are not counted, on the first prompts
  bool random_kv = false;        // in place of the prompts' keys and values
  Interrupted interrupted = {};  // asked at the end of each step
  speculate::VerifyChoice verify = speculate::VerifyChoice::automatic;
  FloorRule floor = {};
  speculate::VerifyChoice verify_within = speculate::VerifyChoice::automatic;
};

/// One batch of prompts, decoded in one way.
struct BatchRun {
  double prefill_s = 0;  // what the draft reads of the prompts, and their last token
  /// Steps of the whole batch, up to the one with which the first sequence ends.
  double whole_s = 0, whole_tokens = 0;
  int whole_steps = 0;
  double draft_s = 0, target_s = 0, verify_s = 0;  // of them, by the clock of rounds
  double decode_s = 0;                             // until the last sequence has ended
  double new_tokens = 0;
};

/// Parts of the output that acceptance is reported by.
inline constexpr int kOutputParts = 8;

/// What a way to decode gave over all batches.
struct WayRuns {
  Way way;
  std::vector<BatchRun> batches;
  std::vector<double> step_ms;  // of the whole batch
  std::vector<double> tpot_ms;  // of each sequence: a token after the first, on average
  std::vector<double> itl_ms;   // between deliveries to a sequence
  std::optional<speculate::RoundStats> stats;   // of rounds of the whole batch
  std::optional<speculate::RoundStats> within;  // of the rounds within them
  /// The same by equal parts of the output, the first tokens first.
  std::vector<speculate::RoundStats> by_output;
  int new_tokens = 0;               // of a sequence
  int sequences = 0, as_plain = 0;  // with the very tokens of plain decoding
  std::optional<Error> error;       // after which it was left out

  /// Median of the batches' means: one disturbed batch does not move it.
  double step_s() const;
  /// Of a sequence, in a step of the whole batch.
  double tokens_per_step() const;
  /// Of a sequence; simulated acceptance counts with its expectation, about which it scatters.
  double token_s() const;
  double token_s(const BatchRun& run) const;
};

/// Measured ways at one batch and context: the first is plain decoding.
struct PointRuns {
  std::vector<WayRuns> ways;
  std::vector<double> prefill_s;  // by batch; empty with random keys
  int batch = 1;
};

/// Decodes every batch of prompts in all ways, one after the other, so that drift of the machine
/// meets all of them. Prompts are read once; each way continues them.
/// ways     the first is plain decoding
/// done     called after each run; returning false interrupts
/// errors   kind interrupted; others of plain decoding and of prompts
PointRuns measure_ways(BenchEngines& engines, const BenchPrompts& prompts,
                       const std::vector<Way>& ways, const MeasureSpec& spec,
                       const std::function<bool()>& done);

}  // namespace tandem::bench
