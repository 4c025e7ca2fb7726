#pragma once
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipe/fields_of.h"
#include "recipe/load.h"
#include "recipe/sections.h"
#include "recipe/value_of.h"
#include "temporary_folder.h"

namespace tandem::recipe {

using test::TemporaryFolder;

/// Sections of the test's own, so that new keys of real tools do not change what is tested here.
enum class Color : uint8_t { red, green };
constexpr std::array<std::string_view, 2> enum_names(Color) { return {"red", "green"}; }

struct TestRun {
  std::string device = "auto";
  int threads = 0;
  int64_t seed = 0;
  TokenCount context{0};
  int batch = 1;
  std::optional<ByteSize> host_limit, gpu_limit;
  std::optional<GpuName> plan_for;

  template <class V>
  void fields(V& v) {
    v("device", device, "a device");
    v("threads", threads, at_least(0), "CPU threads");
    v("seed", seed, at_least(0), "a seed");
    v("context", context, at_least(0).unit("tokens"), "a length");
    v("batch", batch, at_least(1).unit("sequences"), "sequences that run together");
    v("host_limit", host_limit, at_least(0), "a limit");
    v("gpu_limit", gpu_limit, at_least(0), "a limit");
    v("plan_for", plan_for, "a GPU");
  }
};

struct TestSampling {
  double temperature = 0.0;
  int top_k = 0;
  double top_p = 1.0;

  template <class V>
  void fields(V& v) {
    v("temperature", temperature, at_least(0), "a temperature");
    v("top_k", top_k, at_least(0), "a count");
    v("top_p", top_p, above(0).up_to(1), "a probability");
  }
};

struct TestInner {
  Fraction share{0.5};
  Duration limit{10};
  Color color = Color::red;
  bool on = false;

  template <class V>
  void fields(V& v) {
    v("share", share, between(0, 1), "a share");
    v("limit", limit, above(0), "a time");
    v("color", color, "a color");
    v("on", on, "a switch");
  }
  void check(Problems& p) const {
    if (on && share == 0.0) p.field("share", "inner.share must not be 0 while inner.on is true");
  }
};

/// A recipe with every kind of field.
struct Sample {
  Model model;
  TestRun run;
  TestSampling sampling;
  std::filesystem::path output;
  TestInner inner;
  std::vector<std::string> stop;
  std::vector<TokenCount> lengths;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "how to run");
    v("sampling", sampling, "how to sample");
    v("output", output, "where to");
    v("inner", inner, "nested");
    v("stop", stop, "texts");
    v("lengths", lengths, at_least(1), "counts");
  }
};

inline Node parse(const std::string& text) {
  return parse_yaml(text, {std::make_shared<const std::string>("a.yaml"), {}, 1, 1});
}

inline Sample read(const std::string& text) {
  Sample sample;
  Field fields = fields_of(sample);
  read_fields(fields, parse(text));
  return sample;
}

/// What an Error says, with its hint after " | "; "none" if nothing was thrown.
template <class Body>
std::string message(const Body& body) {
  try {
    body();
  } catch (const InvalidRecipe& e) {
    std::string text;
    for (const Error& p : e.problems())
      text += (text.empty() ? "" : "\n") + std::string(p.what()) + " | " + p.hint_text();
    return text;
  } catch (const Error& e) {
    return std::string(e.what()) + " | " + e.hint_text();
  }
  return "none";
}

}  // namespace tandem::recipe
