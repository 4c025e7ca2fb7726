#include <doctest/doctest.h>

#include <fmt/format.h>

#include "recipe/fields_of.h"
#include "recipe/load.h"
#include "train/run/train_recipe.h"

using namespace tandem;
using namespace tandem::train;
using train::TrainRecipe;

namespace {

TrainRecipe read(const std::string& text) {
  TrainRecipe recipe;
  recipe::Field fields = recipe::fields_of(recipe);
  const recipe::Origin origin{
      .name = std::make_shared<const std::string>("r.yaml"), .folder = {}, .line = 1, .column = 1};
  recipe::read_fields(
      fields, recipe::parse_yaml("model: {path: m}\ndata: {path: d.json}\n" + text, origin));
  return recipe;
}

/// The problems of a recipe and their hints, one line each; "none".
std::string problems(const std::string& text) {
  try {
    read(text);
    return "none";
  } catch (const recipe::InvalidRecipe& e) {
    std::string all;
    for (const Error& problem : e.problems()) {
      CHECK(problem.kind() == ErrorKind::recipe);
      all += problem.what();
      if (!problem.hint_text().empty()) all += " | " + problem.hint_text();
    }
    return all;
  }
}

bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  const std::string all = problems(text);
  CAPTURE(all);
  CHECK(all.find(part) != std::string::npos);
  return all.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("train/settings") {
  TEST_CASE("defaults") {
    const TrainRecipe r = read("");
    CHECK(r.train.method == Method::s2ft);
    CHECK(r.train.n_steps(10) == 30);
    CHECK(r.train.optimizer.finds_lr(Method::s2ft));
    CHECK(r.train.optimizer.finds_lr(Method::lora));
    CHECK_FALSE(r.train.optimizer.finds_lr(Method::full));
    CHECK(r.train.optimizer.lr_of(Method::full) == 2e-5);
    CHECK(!r.train.optimizer.rounds_stochastically());
    CHECK(r.train.schedule.warmup_of(200) == 6);
    CHECK(r.train.schedule.warmup_of(100000) == 100);
    CHECK(r.train.select.layers.contains(0));
    CHECK(r.train.select.layers.contains(79));
  }

  TEST_CASE("keys are read") {
    const TrainRecipe r = read(
        "train: {method: full, steps: 7, recompute: 2, batching: pack, micro_tokens: 4Ki,\n"
        "  select: {layers: 16-31, ratios: {d: 3%}}, lora: {targets: [o, down]},\n"
        "  optimizer: {lr: 1e-3, states: bf16}, schedule: {warmup_steps: 3}}\n");
    CHECK(r.train.n_steps(100) == 7);
    CHECK(r.train.recompute == RecomputeLevel::ffn);
    CHECK(r.train.batches.batching == Batching::pack);
    CHECK(r.train.batches.micro_tokens.value == 4096);
    CHECK(r.train.select.layers.first == 16);
    CHECK(!r.train.select.layers.contains(32));
    CHECK(r.train.select.ratios.d.value == 0.03);
    CHECK(r.train.lora.targets == std::vector{Role::o, Role::down});
    CHECK(r.train.optimizer.rounds_stochastically());
    CHECK(r.train.schedule.warmup_of(7) == 3);
  }

  TEST_CASE("layers: all, one, a range") {
    const auto layers = [](const std::string& text) {
      return recipe::yaml_text(read("train: {select: {layers: " + text + "}}").train.select.layers);
    };
    CHECK(layers("all") == "all");
    CHECK(layers("7") == "7");
    CHECK(layers("0-3") == "0-3");
    for (const char* wrong : {"some", "-1", "3-", "-3", "1-2-3", "[1, 2]", "99999"})
      says(std::string("train: {select: {layers: ") + wrong + "}}",
           "train.select.layers: expected all, a layer such as 7, or layers such as 16-31, found ");
    says("train: {select: {layers: 4-3}}", "the last layer comes before the first in '4-3'");
  }

  TEST_CASE("settings that contradict each other") {
    says("train: {steps: 5, epochs: 2}",
         "train.epochs: is 2, but train.steps is 5: set one of them");
    says("train: {steps: 5, schedule: {warmup_steps: 5}}",
         "train.schedule.warmup_steps: is 5 of 5 steps, so training never reaches lr: lower it");
    says("train: {optimizer: {states: bf16}}", "bf16 needs method full, found s2ft");
    says("train: {optimizer: {stochastic_rounding: true}}", "needs states bf16, found f32");
    CHECK(problems("train: {optimizer: {stochastic_rounding: false}}") == "none");
    says("train: {optimizer: {betas: [0.9]}}", "expected two numbers below 1");
    says("train: {optimizer: {betas: [0.9, 1]}}", "expected two numbers below 1");
    says("train: {select: {ratios: {o: 0, d: 0}}}", "expected one above 0, found only 0");
    CHECK(problems("train: {method: lora, select: {ratios: {o: 0, d: 0}}}") == "none");
    says("train: {method: full, select: {exclude: [run]}}",
         "train.select.exclude: needs method s2ft, found full: leave it out");
    says("train: {method: dora, lora: {targets: []}}",
         "train.lora.targets: expected at least one layer");
    says("train: {lora: {targets: [q, q]}}",
         "train.lora.targets: expected each layer once, found one twice");
    says("train: {micro_tokens: 1024}",
         "train.micro_tokens: 1024 is less than train.max_tokens, 2048");

    says("eval: {patience: 2}", "eval.patience: needs validation data");
    says("eval: {every: 2}", "set data.val_size or data.val_path");
    says("output: {path: '-'}", "expected a folder for the run");
  }

  TEST_CASE("data: two kinds of validation, templates") {
    const auto data = [](const std::string& text) {
      try {
        TrainRecipe recipe;
        recipe::Field fields = recipe::fields_of(recipe);
        recipe::read_fields(
            fields, recipe::parse_yaml("model: {path: m}\ndata: {path: d, " + text + "}",
                                       {std::make_shared<const std::string>("r"), {}, 1, 1}));
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string("none");
    };
    CHECK(data("val_path: v").find("none") == 0);
    CHECK(data("val_path: v, val_size: 3").find("set only one of them") != std::string::npos);
    CHECK(
        data("custom: {prompt: '{instruction}'}").find("data.custom needs data.template custom") !=
        std::string::npos);
    CHECK(data("template: custom").find("data.template custom needs data.custom.prompt") !=
          std::string::npos);
    CHECK(data("template: custom, custom: {prompt: '{instruction}'}") == "none");
    CHECK(
        data("template: custom, custom: {prompt: '{question}'}")
            .find(
                "data.custom.prompt: unknown field '{question}'; expected one of {instruction}") !=
        std::string::npos);
    CHECK(data("template: custom, custom: {prompt: 'Q', answer: A}")
              .find("data.custom.answer: expected {output} in the text") != std::string::npos);
  }

  TEST_CASE("unknown keys name the nearest, ranges are checked") {
    says("train: {select: {ratois: {}}}",
         "unknown key 'ratois' in section 'train.select' | did you mean 'ratios'?");
    says("train: {lr: 1}", "unknown key 'lr' in section 'train'");
    says("cache: {kind: full}", "unknown key 'cache'");
    says("run: {batch: 4}", "unknown key 'batch' in section 'run'");
    for (const char* bad : {"-1", ".inf", ".nan", "fast", "'auto'", "[1, 2]"})
      says(fmt::format("train: {{optimizer: {{lr: {}}}}}", bad),
           "expected auto or a number of at least 0, found ");
    CHECK(problems("train: {optimizer: {lr: auto}, method: full}") == "none");
    says("train: {select: {ratios: {o: 1.5}}}",
         "train.select.ratios.o: 1.5 is out of range, expected 0 .. 1");
    says("train: {select: {ratios: {d: -0.1}}}", "is out of range, expected 0 .. 1");
    says("train: {select: {ratios: {d: .nan}}}", "train.select.ratios.d");
    says("train: {method: qlora}",
         "train.method: expected one of s2ft, lora, dora, full, spft, found 'qlora'");
    says("train: {recompute: 4}", "train.recompute: expected");
  }
}
