#pragma once
#include <filesystem>

#include "recipe/sections.h"
#include "train/settings.h"

namespace tandem::tools {

/// Section `model` of training: a run trains all layers where it runs.
struct TrainModel : recipe::Model {
  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "Hugging Face model folder, name of a known model, or synthetic:NAME");
    v("compute", compute, "number type of activations, and of weights that are not trained");
  }
};

/// Section `run` of training: sizes of batches are in section `train`.
struct TrainRun : recipe::RankedRun {
  template <class V>
  void fields(V& v) {
    v("device", device, "auto, cpu, cuda or cuda:N; auto = cuda:0 if usable, else cpu");
    v("threads", threads, recipe::between(0, 1024),
      "CPU threads; 0 = physical cores that the process may use");
    v("seed", seed, recipe::at_least(0), "of the order of samples, the selection, every draw");
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
    v("path", path, "folder of the run: checkpoints, metrics, the adapter");
  }
};

struct TrainRecipe {
  TrainModel model;
  TrainRun run;
  train::DataSettings data;
  recipe::Chat chat;
  train::TrainSettings train;
  train::EvalSettings eval;
  RunFolder output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model that is trained");
    v("run", run, "device, threads, seed");
    v("data", data, "the records, and how they become text");
    v("chat", chat, "how the chat template writes chats");
    v("train", train, "method, steps, batches, optimizer");
    v("eval", eval, "validation");
    v("output", output, "where the run is kept");
  }
  void check(recipe::Problems& p) const;
};

}  // namespace tandem::tools
