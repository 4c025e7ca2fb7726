#include "train/backward/frontier.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::train {
namespace {

const char* reach(const LayerFrontier& f) {
  if (!f.output) return "inference only";
  if (!f.gate_up) return "backward to w_down";
  if (!f.middle) return "backward to gate and up";
  if (!f.attention) return "backward to wo";
  if (!f.input) return "backward to q, k and v";
  return "backward to the input";
}

std::string list_of(const LayerFrontier& f, bool kept) {
  using Again = LayerFrontier::Again;
  std::string list;
  const auto add = [&](bool read, bool again, const char* name) {
    if (!read || again == kept) return;
    if (!list.empty()) list += ", ";
    list += name;
  };
  const bool layer = f.again == Again::layer;
  add(f.reads_input, false, "input");
  add(f.keeps_normed_in, false, "its norm");
  add(f.reads_qkv, layer, "qkv");
  add(f.attention, layer, "q");
  add(f.attention, false, "k, v");
  add(f.attention, layer, "lse");
  add(f.reads_attended, layer, "attention's output");
  add(f.reads_o_out, layer, "output of o");
  add(f.reads_middle, layer, "middle");
  add(f.keeps_normed_mid, false, "its norm");
  add(f.reads_gate_up(), f.again != Again::none, "gate and up");
  add(f.keeps_ffn, false, "the gate's output");
  add(f.reads_down_out, false, "output of down");
  add(f.reads_factors, false, "inputs of B");
  add(f.reads_added, false, "outputs of o and down");
  return list;
}

std::string text_of(const LayerFrontier& f) {
  std::string text = reach(f);
  if (f.output) text += ", keeps " + list_of(f, true);
  if (f.again != LayerFrontier::Again::none) text += ", recomputes " + list_of(f, false);
  return text;
}

}  // namespace

int Frontier::first() const {
  const auto found = std::ranges::find_if(layers, [](const LayerFrontier& f) { return f.output; });
  return static_cast<int>(found - layers.begin());
}

Frontier frontier_of(const TrainedSet& set, const model::ModelConfig& config,
                     Recomputation recompute) {
  using Again = LayerFrontier::Again;
  Frontier plan;
  bool below = set.embedding.trained();  // something is trained under the layer
  for (const auto& t : set.layers) {
    LayerFrontier f;
    f.input = below || set.norms;
    f.attention = f.input || t[Role::qkv].any();
    f.middle = f.attention || t[Role::o].any();
    f.gate_up = f.middle || t[Role::gate_up].any();
    f.output = f.gate_up || t[Role::down].any();
    f.reads_middle = f.middle || t[Role::gate_up].trained();
    f.reads_attended = f.attention || t[Role::o].trained();
    f.reads_input = f.input || t[Role::qkv].trained();
    const bool of_magnitude = set.low_rank.magnitude && t[Role::qkv].trained();
    f.reads_qkv = f.attention && (config.qk_norm() != model::QkNorm::none || of_magnitude);
    f.reads_o_out = f.middle && config.norms().post;
    f.reads_down_out = f.output && config.norms().post;
    f.reads_factors = set.low_rank.rank > 0 && f.output;
    f.reads_added = set.low_rank.magnitude && (t[Role::o].trained() || t[Role::down].trained());
    if (recompute == Recomputation::none) {
      f.keeps_normed_in = t[Role::qkv].trained();
      f.keeps_normed_mid = t[Role::gate_up].trained();
      f.keeps_ffn = t[Role::down].trained() && t[Role::down].part != TrainedMatrix::Part::columns;
    }
    if (recompute >= Recomputation::ffn && f.reads_middle) f.again = Again::gate_up;
    if (recompute == Recomputation::layer && f.input) f.again = Again::layer;
    below = below || f.output;
    plan.layers.push_back(f);
  }
  return plan;
}

std::string describe(const Frontier& frontier) {
  std::string text;
  const auto n = static_cast<int>(frontier.layers.size());
  for (int first = 0, last = 0; first < n; first = last + 1) {
    const std::string line = text_of(frontier.layers[static_cast<size_t>(first)]);
    last = first;
    while (last + 1 < n && text_of(frontier.layers[static_cast<size_t>(last) + 1]) == line) ++last;
    text += first == last ? fmt::format("layer {}: {}\n", first, line)
                          : fmt::format("layers {}-{}: {}\n", first, last, line);
  }
  return text;
}

}  // namespace tandem::train
