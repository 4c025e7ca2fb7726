#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec/roles.h"
#include "recipe/fields.h"
#include "recipe/layer_range.h"
#include "train/data/settings.h"

namespace tandem::model {
// Matrices of a layer are read and written by their words.
std::string read_scalar(const recipe::Node& node, Role& out);
inline std::string yaml_text(Role role) { return word_of(role); }
inline std::string type_name(Role) { return "q|k|v|o|gate|up|down"; }
}  // namespace tandem::model

namespace tandem::train {

using model::Role;

enum class Method : uint8_t { s2ft, lora, dora, full, spft };
constexpr std::array<std::string_view, 5> enum_names(Method) {
  return {"s2ft", "lora", "dora", "full", "spft"};
}

/// The score that heads and channels are selected by: the paper's R, W, A, S, G.
enum class Strategy : uint8_t { random, weight, activation, weight_activation, gradient };
constexpr std::array<std::string_view, 5> enum_names(Strategy) {
  return {"random", "weight", "activation", "weight_activation", "gradient"};
}
enum class Side : uint8_t { small, large };
constexpr std::array<std::string_view, 2> enum_names(Side) { return {"small", "large"}; }
enum class Scope : uint8_t { per_layer, global };
constexpr std::array<std::string_view, 2> enum_names(Scope) { return {"per_layer", "global"}; }

/// Shares of heads (o, q: query heads; k, v: KV heads) and of FFN channels that are trained.
struct Ratios {
  recipe::Fraction o{0.052}, d{0.02}, v{0}, u{0}, g{0}, q{0}, k{0};

  template <class V>
  void fields(V& visit) {
    const auto share = recipe::between(0, 1);
    visit("o", o, share, "share of query heads whose columns of the output projection are trained");
    visit("d", d, share, "share of FFN channels whose columns of the down projection are trained");
    visit("v", v, share, "share of KV heads whose rows of the value projection are trained");
    visit("u", u, share, "share of FFN channels whose rows of the up projection are trained");
    visit("g", g, share, "share of FFN channels whose rows of the gate projection are trained");
    visit("q", q, share, "share of query heads whose rows of the query projection are trained");
    visit("k", k, share, "share of KV heads whose rows of the key projection are trained");
  }
  model::PerMatrix<double> by_role() const { return {q, k, v, o, g, u, d}; }
};

/// Section `train.select`: the slices of s2ft.
struct Selection {
  Strategy strategy = Strategy::random;
  Side side = Side::small;
  Scope scope = Scope::per_layer;
  Ratios ratios;
  recipe::LayerRange layers;
  recipe::Fraction calibration{0.01};
  std::vector<std::filesystem::path> exclude;

  template <class V>
  void fields(V& v) {
    v("strategy", strategy,
      "selection of heads and channels: random, or by norms of weights, activations, both, or "
      "gradients");
    v("side", side,
      "side of the norms that is selected, smallest or largest. Not used by strategy: random");
    v("scope", scope, "scope of the shares: each layer, or all layers together");
    v("ratios", ratios, "shares to train");
    v("layers", layers, "layers to train");
    v("calibration", calibration, recipe::above(0).up_to(1),
      "share of the training samples for activation and gradient norms");
    v("exclude", exclude, "adapter or run folders whose heads and channels are not selected");
  }
};

/// Section `train.lora`, of methods lora and dora.
struct LoraSettings {
  int rank = 32;
  double alpha = 64, dropout = 0;
  std::vector<Role> targets = {Role::q, Role::k, Role::v, Role::up, Role::down};
  bool rslora = false;

  template <class V>
  void fields(V& v) {
    v("rank", rank, recipe::between(1, 4096), "rank of the two factors");
    v("alpha", alpha, recipe::above(0), "scale of the factors' product: alpha / rank");
    v("dropout", dropout, recipe::between(0, 0.99), "dropout of the inputs of A");
    v("targets", targets, "matrices to adapt, a list of q, k, v, o, gate, up and down");
    v("rslora", rslora, "rank-stabilized scale, alpha / sqrt(rank)");
  }
};

/// Section `train.spft`: single weights anywhere, the baseline of structured slices.
struct SpftSettings {
  recipe::Fraction ratio{0.01};

  template <class V>
  void fields(V& v) {
    v("ratio", ratio, recipe::above(0).up_to(1),
      "share of each matrix to train, selected at random");
  }
};

/// Number type of weights that are trained and of their moments.
enum class StateType : uint8_t { f32, bf16 };
constexpr std::array<std::string_view, 2> enum_names(StateType) { return {"f32", "bf16"}; }
enum class DecayTarget : uint8_t { weight, delta };
constexpr std::array<std::string_view, 2> enum_names(DecayTarget) { return {"weight", "delta"}; }

/// A learning rate, or `auto`: a range test before the first step chooses it.
struct LearningRate {
  double value = 0;
  bool automatic = false;
};
std::string read_scalar(const recipe::Node& node, LearningRate& out);
std::string yaml_text(LearningRate rate);
nlohmann::json json_of(LearningRate rate);
inline std::string type_name(LearningRate) { return "auto|number"; }

/// Section `train.optimizer`: AdamW.
struct OptimizerSettings {
  std::optional<LearningRate> lr;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8, weight_decay = 0, clip = 1;
  DecayTarget weight_decay_target = DecayTarget::delta;
  StateType states = StateType::f32;
  std::optional<bool> stochastic_rounding;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("lr", lr,
      "peak learning rate. auto = a range test on the first batches. null = auto, or 2e-5 for "
      "method: full");
    v("betas", betas, between_zero_and_one(), "decay rates of the two moments");
    v("eps", eps, recipe::above(0), "constant added to the root of the second moment");
    v("weight_decay", weight_decay, at_least(0),
      "weight decay per step, multiplied by the learning rate");
    v("weight_decay_target", weight_decay_target,
      "target of weight decay: the base model's weights (delta) or 0 (weight)");
    v("clip", clip, at_least(0), "largest global gradient norm, 0 = no clipping");
    v("states", states,
      "data type of trained weights and moments. bf16 halves memory, only with method: full");
    v("stochastic_rounding", stochastic_rounding,
      "stochastic rounding of bf16 states, null = true. Without it, small updates are lost to "
      "rounding");
  }
  void check(recipe::Problems& p) const;
  /// Whether bf16 would not round the decay of the second moment away for ever: its neighbours are
  /// 2^-8 apart or more.
  bool allows_narrow_states() const { return betas.size() == 2 && betas[1] <= kMostNarrowBeta; }
  static constexpr double kMostNarrowBeta = 0.99;
  bool finds_lr(Method method) const { return lr ? lr->automatic : method != Method::full; }
  /// With a range test 0: it is not known yet.
  double lr_of(Method method) const {
    return finds_lr(method) ? 0 : lr.value_or(LearningRate{2e-5}).value;
  }
  bool rounds_stochastically() const {
    return states == StateType::bf16 && stochastic_rounding.value_or(true);
  }

 private:
  static recipe::Limits between_zero_and_one() { return recipe::between(0, 1); }
};

enum class ScheduleKind : uint8_t { linear, cosine, constant };
constexpr std::array<std::string_view, 3> enum_names(ScheduleKind) {
  return {"linear", "cosine", "constant"};
}

/// Section `train.schedule`: the learning rate over the run.
struct ScheduleSettings {
  ScheduleKind kind = ScheduleKind::linear;
  std::optional<int> warmup_steps;
  bool warmup_from_zero = true;
  recipe::Fraction min_lr_ratio{0};

  template <class V>
  void fields(V& v) {
    v("kind", kind, "decay of the learning rate after the warm-up");
    v("warmup_steps", warmup_steps, recipe::at_least(0).unit("steps"),
      "warm-up steps, null = 3 % of the run, at most 100");
    v("warmup_from_zero", warmup_from_zero,
      "rate 0 in the first step, as in Hugging Face's schedules. false = the first fraction of the "
      "warm-up");
    v("min_lr_ratio", min_lr_ratio, recipe::between(0, 1), "final learning rate as a share of lr");
  }
  int64_t warmup_of(int64_t steps) const;
};

/// How much of a layer's forward is computed again in the backward pass.
enum class RecomputeLevel : uint8_t { automatic, none, light, ffn, layer };
constexpr std::array<std::string_view, 5> enum_names(RecomputeLevel) {
  return {"auto", "0", "1", "2", "3"};
}

/// Destination of a step's figures in addition to metrics.jsonl.
enum class StepLog : uint8_t { jsonl, tensorboard };
constexpr std::array<std::string_view, 2> enum_names(StepLog) { return {"jsonl", "tensorboard"}; }

/// Section `train`.
struct TrainSettings {
  Method method = Method::s2ft;
  std::optional<int> steps, epochs;
  BatchSettings batches;
  Selection select;
  LoraSettings lora;
  SpftSettings spft;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;
  RecomputeLevel recompute = RecomputeLevel::automatic;
  std::optional<int> save_every;
  int keep_checkpoints = 3;
  StepLog log = StepLog::jsonl;

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("method", method,
      "training method: s2ft (selected heads and channels), lora or dora (low-rank factors), full "
      "(all weights), or spft (random single weights)");
    v("steps", steps, at_least(1).unit("steps"), "number of optimizer steps, null = by epochs");
    v("epochs", epochs, at_least(1), "passes over the data, null = 3, or by steps");
    batches.fields(v);
    v("select", select, "selection of heads and channels, for method: s2ft");
    v("lora", lora, "low-rank factors, for method: lora and dora");
    v("spft", spft, "random single weights, for method: spft");
    v("optimizer", optimizer, "AdamW");
    v("schedule", schedule, "learning rate schedule");
    v("recompute", recompute,
      "activation recomputation: 0 (none), 1 (norms and gate), 2 (also gate and up projections), "
      "or 3 (entire layers). auto = the lowest level that fits");
    v("save_every", save_every, at_least(1).unit("steps"),
      "steps between checkpoints, null = a tenth of the run");
    v("keep_checkpoints", keep_checkpoints, at_least(1),
      "number of latest checkpoints to keep, in addition to the best");
    v("log", log,
      "metrics log: jsonl (metrics.jsonl only), or tensorboard (also TensorBoard event files)");
  }
  void check(recipe::Problems& p) const;
  /// Whether `states: bf16` is allowed, and not chosen.
  bool may_narrow_states() const {
    return method == Method::full && optimizer.states == StateType::f32 &&
           optimizer.allows_narrow_states();
  }
  /// Optimizer steps of the run.
  int64_t n_steps(int64_t steps_per_epoch) const {
    return steps ? *steps : steps_per_epoch * epochs.value_or(3);
  }
};

/// Section `eval` of training: validation.
struct EvalSettings {
  std::optional<int> every;
  recipe::Fraction after{0};
  int patience = 0;

  template <class V>
  void fields(V& v) {
    v("every", every, recipe::at_least(1).unit("steps"),
      "steps between validations, null = a tenth of the run");
    v("after", after, recipe::between(0, 1), "share of the run before the first validation");
    v("patience", patience, recipe::at_least(0),
      "early stopping: validations in a row without a better loss, 0 = never");
  }
};

}  // namespace tandem::train
