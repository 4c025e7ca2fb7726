#pragma once
#include <optional>

#include "recipe/fields.h"
#include "recipe/gpu_name.h"
#include "speculate/plan/forward_time.h"

namespace tandem::tools {

/// Section `bench.hardware`: the machine that is predicted for.
struct HardwareSection {
  std::optional<recipe::GpuName> card;
  std::optional<double> read_gbps, bf16_tflops;
  recipe::Fraction read_share{0.85}, compute_share{0.4};
  int gpus = 1;
  double link_gbps = 0;
  recipe::Duration reduction{0}, forward{0}, round{0};
  std::optional<recipe::ByteSize> memory;
  recipe::Fraction memory_share{0.9};

  template <class V>
  void fields(V& v) {
    using recipe::above;
    using recipe::at_least;
    v("card", card, "GPU whose data sheet gives the rates that are null");
    v("read_gbps", read_gbps, above(0).unit("GB/s"), "peak rate of its memory");
    v("bf16_tflops", bf16_tflops, above(0).unit("TFLOP/s"), "peak rate of dense products");
    v("read_share", read_share, above(0).up_to(1), "of read_gbps that forwards reach");
    v("compute_share", compute_share, above(0).up_to(1), "of bf16_tflops that forwards reach");
    v("gpus", gpus, at_least(1).up_to(1024), "that share every layer (tensor parallel)");
    v("link_gbps", link_gbps, at_least(0).unit("GB/s"), "between them; 0 = not counted");
    v("reduction", reduction, at_least(0), "latency of a sum over them, two a layer");
    v("forward", forward, at_least(0), "fixed part of every forward: launches, planning");
    v("round", round, at_least(0), "fixed part of every round: drawing, verification, host");
    v("memory", memory, at_least(0), "of one GPU; null = the card's");
    v("memory_share", memory_share, above(0).up_to(1), "of it that a run may use");
  }

  /// Whether the card or the numbers give both rates.
  bool complete() const;
  speculate::MachineRates rates() const;
  /// That a run may use on one GPU; none where neither a card nor a size is given.
  std::optional<double> memory_bytes() const;
};

}  // namespace tandem::tools
