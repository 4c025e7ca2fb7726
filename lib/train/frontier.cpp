#include "train/frontier.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::train {
namespace {

const char* reach(const LayerFrontier& f) {
  if (!f.output) return "as for inference";
  if (!f.gate_up) return "back to w_down";
  if (!f.middle) return "back to gate and up";
  if (!f.attention) return "back to wo";
  if (!f.input) return "back to q, k and v";
  return "back to the input";
}

std::string kept(const LayerFrontier& f) {
  std::string list;
  const auto add = [&](bool is_kept, const char* name) {
    if (!is_kept) return;
    if (!list.empty()) list += ", ";
    list += name;
  };
  add(f.keeps_input, "input");
  add(f.keeps_qkv, "qkv");
  add(f.attention, "q, k, v, lse");
  add(f.keeps_attended, "attention's output");
  add(f.keeps_middle, "middle");
  add(f.keeps_gate_up(), "gate and up");
  return list;
}

std::string text_of(const LayerFrontier& f) {
  const std::string list = kept(f);
  return list.empty() ? std::string(reach(f)) : fmt::format("{}; keeps {}", reach(f), list);
}

}  // namespace

int Frontier::first() const {
  const auto found = std::ranges::find_if(layers, [](const LayerFrontier& f) { return f.output; });
  return static_cast<int>(found - layers.begin());
}

Frontier frontier_of(const TrainedSet& set, const model::ModelConfig& config) {
  Frontier plan;
  bool below = set.embedding.trained();  // something is trained under the layer
  for (const TrainedLayer& t : set.layers) {
    LayerFrontier f;
    f.input = below || set.norms;
    f.attention = f.input || t.qkv.any();
    f.middle = f.attention || t.wo.any();
    f.gate_up = f.middle || t.gate_up.any();
    f.output = f.gate_up || t.w_down.any();
    f.keeps_middle = f.middle || t.gate_up.trained();
    f.keeps_attended = f.attention || t.wo.trained();
    f.keeps_input = f.input || t.qkv.trained();
    f.keeps_qkv = f.attention && config.qk_norm;
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
