#pragma once
#include <filesystem>

#include "recipe/sections.h"
#include "train/settings.h"

namespace tandem::train {

/// Section `model` of training: a run trains all layers where it runs. Products multiply
/// activations as they are.
struct TrainModel : recipe::Model {
  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "Hugging Face model folder, name of a known model, or synthetic:NAME (random weights)");
    v("compute", compute, "data type of activations and of weights that are not quantized");
    form_fields(v);
  }
};

/// Section `run` of training: sizes of batches are in section `train`.
struct TrainRun : recipe::RankedRun {
  template <class V>
  void fields(V& v) {
    v("device", device, "device: cpu, cuda or cuda:N. auto = cuda:0 if usable, else cpu");
    v("threads", threads, recipe::between(0, 1024),
      "number of CPU threads, 0 = physical cores available to the process");
    v("seed", seed, recipe::at_least(0),
      "seed of the sample order, the selection and every random draw");
    v("host_memory_limit", host_memory_limit, recipe::at_least(0),
      "refuse plans beyond it; null = free memory");
    v("gpu_memory_limit", gpu_memory_limit, recipe::at_least(0),
      "refuse plans beyond it; null = free memory");
    v("plan_for", plan_for, plan_for_text());
    rank_fields(v);
  }
};

/// Section `output` of training.
struct RunFolder {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path, "run folder with checkpoints, metrics and the adapter");
  }
};

struct TrainRecipe {
  TrainModel model;
  TrainRun run;
  DataSettings data;
  recipe::Chat chat;
  TrainSettings train;
  EvalSettings eval;
  RunFolder output;

  template <class V>
  void fields(V& v) {
    v("model", model, "model to train");
    v("run", run, "device, threads, seed");
    v("data", data, "training records and their templates");
    v("chat", chat, "chat template");
    v("train", train, "method, steps, batches and optimizer");
    v("eval", eval, "validation");
    v("output", output, "run folder");
  }
  void check(recipe::Problems& p) const;
};

}  // namespace tandem::train
