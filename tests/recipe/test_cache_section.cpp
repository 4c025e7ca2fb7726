#include <doctest/doctest.h>

#include "recipe_testing.h"

using namespace tandem::recipe;

namespace {

struct Settings {
  Cache cache;
  template <class V>
  void fields(V& v) {
    v("cache", cache, "what attention reads");
  }
};

/// The problem that cache settings have, or "none". Every one is of kind recipe.
std::string problem(const std::string& settings) {
  return message([&] {
    Settings s;
    Field fields = fields_of(s);
    try {
      read_fields(fields, parse("cache: {" + settings + "}"));
    } catch (const tandem::Error& e) {
      CHECK(tandem::exit_status(e.kind()) == 3);
      throw;
    }
  });
}

}  // namespace

TEST_SUITE("recipe/cache_section") {
  TEST_CASE("settings of sparse caches beyond their range") {
    struct Case {
      std::string settings, problem;
    };
    const Case cases[] = {
        {"lsh: {bits: 17}", "cache.lsh.bits: 17 is out of range, expected 1 .. 16"},
        {"lsh: {bits: 0}", "cache.lsh.bits: 0 is out of range, expected 1 .. 16"},
        {"lsh: {tables: 0}", "cache.lsh.tables: 0 is out of range, expected 1 .. 4096"},
        {"lsh: {min_hits: 0}", "cache.lsh.min_hits: 0 is out of range, expected 1 .. 255"},
        {"lsh: {min_hits: 256}", "cache.lsh.min_hits: 256 is out of range, expected 1 .. 255"},
        {"lsh: {tables: 3, min_hits: 4}",
         "cache.lsh.min_hits: 4 tables must agree, but cache.lsh.tables is 3"},
        {"lsh: {seed: -1}", "cache.lsh.seed: -1 is out of range, expected >= 0"},
        {"lsh: {u_floor: -0.1}", "cache.lsh.u_floor: -0.1 is out of range, expected 0 .. 1"},
        {"topk: {ratio: 0}", "cache.topk.ratio: 0 is out of range, expected 0 < x <= 1"},
        {"topk: {ratio: 1.5}", "cache.topk.ratio: 1.5 is out of range, expected 0 < x <= 1"},
        {"quest: {ratio: 0}", "cache.quest.ratio: 0 is out of range, expected 0 < x <= 1"},
        {"quest: {ratio: 1.5}", "cache.quest.ratio: 1.5 is out of range, expected 0 < x <= 1"},
        {"quest: {page: 0}", "cache.quest.page: 0 is out of range, expected 1 .. 64 tokens"},
        {"quest: {page: 24}", "cache.quest.page: expected a divisor of 64, found 24"},
        {"quest: {page: 128}", "cache.quest.page: 128 is out of range, expected 1 .. 64 tokens"},
        {"hybrid: {bits: 224}", "cache.hybrid.bits: 224 is out of range, expected 1 .. 3"},
        {"hybrid: {bits: 0}", "cache.hybrid.bits: 0 is out of range, expected 1 .. 3"},
        {"hybrid: {refine: 2}", "cache.hybrid.refine: 2 is out of range, expected 0 .. 1"},
        {"hybrid: {exact: 1.1}", "cache.hybrid.exact: 1.1 is out of range, expected 0 .. 1"},
        {"hybrid: {sample: 0, tail: sampled}",
         "cache.hybrid.sample: tail sampled needs a share above 0, found 0"},
        {"hybrid: {tail: weighted}",
         "cache.hybrid.tail: expected one of clusters, means, sampled, none, found 'weighted'"},
        {"hybrid: {group: kv}", "cache.hybrid.group: expected one of head, shared, found 'kv'"},
        {"hybrid: {trust: 1}", "unknown key 'trust' in section 'cache.hybrid'"},
        {"hybrid: {budget: mass, mass: 0}",
         "cache.hybrid.mass: 0 is out of range, expected 0 < x <= 1"},
        {"hybrid: {budget: error}",
         "cache.hybrid.budget: error needs tail sampled, found clusters: set tail sampled"},
        {"snapkv: {pool: 4}", "cache.snapkv.pool: expected an odd number, found 4: try 5"},
        {"snapkv: {window: 0}",
         "cache.snapkv.window: 0 is out of range, expected 1 .. 1024 tokens"},
        {"snapkv: {refresh: 0}",
         "cache.snapkv.refresh: expected never or a number of tokens of at least 1, found '0'"},
        {"snapkv: {refresh: often}",
         "cache.snapkv.refresh: expected never or a number of tokens of at least 1, found 'often'"},
        {"snapkv: {scale: true}", "cache.snapkv.scale: expected"},
        {"kind: snapkv, snapkv: {budget: 36}",
         "cache.snapkv.budget: 36 tokens hold only the window of 32 and 4 sinks: set at least 37, "
         "or a smaller window"},
        {"verified: {budget: 255}", "cache.verified.budget: 255 is out of range, expected 256 .. "},
        {"verified: {window: 129}",
         "cache.verified.window: 129 is out of range, expected 1 .. 128 tokens"},
        {"retrieval: {chunk: 24}", "cache.retrieval.chunk: expected a divisor of 64, found 24"},
        {"retrieval: {chunk: 128}",
         "cache.retrieval.chunk: 128 is out of range, expected 1 .. 64 tokens"},
        {"retrieval: {budget: 1}", "cache.retrieval.budget: 1 is out of range, expected 2 .. "},
        {"kind: retrieval, retrieval: {budget: 15}",
         "cache.retrieval.budget: 15 tokens do not hold two chunks of 8 and 0 recent tokens: set "
         "at least 16, or smaller chunks"},
        {"kind: retrieval, retrieval: {budget: 100, chunk: 32, force_recent: 64}",
         "cache.retrieval.budget: 100 tokens do not hold two chunks of 32 and 64 recent tokens: "
         "set at least 128, or smaller chunks"},
        {"retrieval: {group: mean}",
         "cache.retrieval.group: expected one of sum, max, found 'mean'"},
        {"retrieval: {query: first}",
         "cache.retrieval.query: expected one of last, window, found 'first'"},
        {"retrieval: {force_recent: -1}", "cache.retrieval.force_recent: -1 is out of range"},
        {"retrieval: {rebuild: 0}",
         "cache.retrieval.rebuild: expected never, a number of tokens of at least 1, or a bound "
         "such as alpha<0.8, found '0'"},
        {"retrieval: {rebuild: alpha<1.5}",
         "cache.retrieval.rebuild: expected never, a number of tokens of at least 1, or a bound "
         "such as alpha<0.8, found 'alpha<1.5'"},
        {"retrieval: {rebuild: alpha<}",
         "cache.retrieval.rebuild: expected never, a number of tokens of at least 1, or a bound "
         "such as alpha<0.8, found 'alpha<'"},
        {"kind: retrieval, place: host",
         "cache.place: host needs kind lsh, hybrid or full, found retrieval: leave it device, or "
         "change the kind"},
        {"kind: snapkv, prefill: windowed",
         "cache.prefill: windowed needs kind streaming, found snapkv: leave it dense, or choose "
         "kind streaming"},
        {"kind: quest, place: host",
         "cache.place: host needs kind lsh, hybrid or full, found quest: leave it device, or "
         "change the kind"},
        {"kind: full, place: host, attend: both",
         "cache.attend: both needs a sparse kind, found full: set attend cpu or gpu, or kind "
         "hybrid"},
        {"kind: full, place: host, index: host, attend: gpu",
         "cache.index: host needs a kind with an index, found full: leave it auto, or choose kind "
         "lsh or hybrid"},
        {"kind: full, attend: gpu",
         "cache.attend: gpu needs cache.place host, found device: set place host, or leave it "
         "auto"},
        {"kind: full, wide_layers: [1]",
         "cache.wide_layers: needs dtype k8v4, k6v4 or int4, found auto: set dtype, or leave "
         "wide_layers out"},
        {"kind: full, dtype: int8, wide_layers: []",
         "cache.wide_layers: needs dtype k8v4, k6v4 or int4, found int8: set dtype, or leave "
         "wide_layers out"},
        {"place: disk", "cache.place: expected one of device, host, found 'disk'"},
        {"kind: hybrid, attend: cpu",
         "cache.attend: cpu needs cache.place host, found device: set place host, or leave it "
         "auto"},
        {"kind: hybrid, index: device",
         "cache.index: device needs cache.place host, found device: set place host, or leave it "
         "auto"},
        {"kind: hybrid, place: host, index: host, attend: both",
         "cache.attend: both needs an index in GPU memory, found cache.index host: set index "
         "device, or attend cpu"},
        {"kind: lsh, place: host, attend: both",
         "cache.attend: kind lsh attends where its tables are, found both with index auto: set "
         "attend cpu and index host, attend gpu, or kind hybrid"},
        {"kind: lsh, host_dtype: int8",
         "cache.host_dtype: int8 needs cache.place host, found device: set place host, or leave it "
         "auto"},
        {"kind: lsh, host_dtype: int4",
         "cache.host_dtype: expected one of auto, bf16, int8, found 'int4'"},
        {"kind: full, place: host, host_dtype: int8",
         "cache.host_dtype: int8 needs a sparse kind, found full: leave it auto, or choose kind "
         "lsh or hybrid"},
        {"kind: hybrid, place: host, attend: both, host_dtype: int8",
         "cache.host_dtype: int8 needs attention on the CPU, found attend both: set attend cpu, or "
         "leave host_dtype auto"},
        {"kind: lsh, place: host, index: device, host_dtype: int8",
         "cache.host_dtype: int8 with kind lsh needs its tables in host memory, found index "
         "device: set index host, or leave host_dtype auto"},
        {"resident_layers: 3",
         "cache.resident_layers: 3 needs cache.place host and cache.kind full: set both, or leave "
         "it none"},
        {"kind: lsh, place: host, resident_layers: auto",
         "cache.resident_layers: auto needs cache.place host and cache.kind full"},
        {"place: host, resident_layers: -1",
         "cache.resident_layers: expected none, auto or a number of layers, found '-1'"},
        {"recent: 0", "cache.recent: 0 is out of range, expected 1 .. "},
        {"dense_layers: [-1]", "cache.dense_layers"},
    };
    for (const Case& c : cases) {
      CAPTURE(c.settings);
      const std::string text = problem(c.settings);
      CAPTURE(text);
      CHECK(text.find(": " + c.problem) != std::string::npos);
      CHECK(text.find("a.yaml:1:") == 0);
    }
  }

  TEST_CASE("retrieval.rebuild reads and writes its words") {
    struct Case {
      std::string text;
      int tokens;
      double alpha;
    };
    for (const Case& c : {Case{"never", 0, 0}, {"64", 64, 0}, {"alpha<0.85", 0, 0.85}}) {
      CAPTURE(c.text);
      Settings s;
      Field fields = fields_of(s);
      read_fields(fields, parse("cache: {retrieval: {rebuild: " + c.text + "}}"));
      CHECK(s.cache.retrieval.rebuild.tokens == c.tokens);
      CHECK(s.cache.retrieval.rebuild.alpha == c.alpha);
      CHECK(yaml_text(s.cache.retrieval.rebuild) == c.text);
    }
  }

  TEST_CASE("the ends of the ranges") {
    for (const std::string settings :
         {"lsh: {bits: 16, tables: 4096, min_hits: 255}", "lsh: {bits: 1, tables: 1, min_hits: 1}",
          "lsh: {u_floor: 0}", "topk: {ratio: 1}", "quest: {page: 1}",
          "quest: {page: 64, ratio: 1}", "hybrid: {bits: 1, refine: 0}",
          "hybrid: {bits: 3, exact: 0, sample: 1, refine: 1}",
          "hybrid: {exact: 1, sample: 0, tail: none}", "hybrid: {sample: 0, tail: means}",
          "retrieval: {budget: 2, chunk: 1, rebuild: 1}", "retrieval: {chunk: 64, rebuild: never}",
          "kind: retrieval, retrieval: {budget: 16}",
          "kind: retrieval, retrieval: {budget: 128, chunk: 32, force_recent: 64}",
          "sinks: 0, recent: 1, dense_layers: []"}) {
      CAPTURE(settings);
      CHECK(problem(settings) == "none");
    }
  }
}
