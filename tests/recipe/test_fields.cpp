#include <doctest/doctest.h>

#include "recipe/auto_counts.h"
#include "recipe_testing.h"

using namespace tandem;
using namespace tandem::recipe;

namespace {

std::string failure(const std::string& text) {
  return message([&] { read("model: {path: m}\n" + text); });
}

enum class Shape : uint8_t { none, circle, box };
constexpr std::array<std::string_view, 3> enum_names(Shape) { return {"none", "circle", "box"}; }

/// A recipe with a tagged section.
struct Tagged {
  struct Drawn {
    Shape kind = Shape::none;
    int radius = 1, width = 2;
    double line = 3;

    template <class V>
    void fields(V& v) {
      v("kind", kind, "a shape");
      v("radius", radius, at_least(1).of("circle"), "a length");
      v("width", width, of_kind("box"), "a length");
      v("line", line, of_kind("circle|box"), "a thickness");
    }
  };
  Drawn shape;

  template <class V>
  void fields(V& v) {
    v("shape", shape, "what is drawn");
  }
};

/// Layers of a recipe, the last above the others.
Node layers(std::initializer_list<const char*> texts) {
  Node tree = parse_yaml("{}", {});
  for (const char* text : texts) merge(tree, parse_yaml(text, {}));
  return tree;
}

std::string read_tagged(const Node& tree) {
  Tagged tagged;
  Field fields = fields_of(tagged);
  read_fields(fields, tree);
  return flow_text(fields);
}

}  // namespace

TEST_SUITE("recipe/fields") {
  TEST_CASE("a tagged section has the keys of its kind") {
    const auto shape = [](const char* text) { return read_tagged(layers({text})); };
    CHECK(shape("{}") == "{shape: {kind: none}}");
    CHECK(shape("shape: {kind: circle, radius: 5}") ==
          "{shape: {kind: circle, radius: 5, line: 3}}");
    CHECK(shape("shape: {line: 4, kind: box}") == "{shape: {kind: box, width: 2, line: 4}}");
    const std::string text = message([&] { shape("shape: {kind: box, radius: 5}"); });
    CHECK(text.find("shape: kind box has no key 'radius'") != std::string::npos);
    CHECK(text.find("valid keys: kind, width, line") != std::string::npos);
    CHECK(message([&] { shape("shape: {kind: ring, radius: 5}"); }).find("radius") ==
          std::string::npos);
    Tagged tagged;
    const Field fields = fields_of(tagged);
    CHECK(to_json(fields).dump() == R"({"shape":{"kind":"none"}})");
    CHECK(dump_yaml(fields, nullptr) == "shape:\n  kind: none\n");
    CHECK(find_field(fields, "shape.line")->meaning() ==
          "a thickness. Only with kind: circle, box");
  }

  TEST_CASE("a layer that changes the kind leaves what the other kind had") {
    CHECK(read_tagged(layers({"shape: {kind: circle, radius: 5, line: 7}",
                              "shape: {kind: box}"})) == "{shape: {kind: box, width: 2, line: 7}}");
    CHECK(read_tagged(layers({"shape: {line: 7, width: 4}", "shape: {kind: circle}"})) ==
          "{shape: {kind: circle, radius: 1, line: 7}}");
    CHECK(read_tagged(layers({"shape: {kind: circle, radius: 5}", "shape: {kind: box}",
                              "shape: {kind: circle}"})) ==
          "{shape: {kind: circle, radius: 5, line: 3}}");
    CHECK(message([] {
            read_tagged(layers(
                {"shape: {kind: circle, radius: 5}", "shape: {kind: box}", "shape: {radius: 6}"}));
          }).find("kind box has no key 'radius'") != std::string::npos);
  }

  TEST_CASE("every type is read") {
    const Sample s = read(R"(
model: {path: synthetic:llama-68m, compute: f32, state: s.bin}
run: {threads: 3, seed: 7, context: 96Ki, host_limit: 16GiB}
sampling: {temperature: 0.6, top_p: 1}
inner: {share: 25%, limit: 250ms, color: green, on: true}
stop: ["a b", 'null', 12]
lengths: [4096, 4Ki]
)");
    CHECK(s.model.path.value == "synthetic:llama-68m");
    CHECK(s.model.compute == Compute::f32);
    CHECK(s.model.state == "s.bin");
    CHECK(s.run.threads == 3);
    CHECK(s.run.context == 98304);
    CHECK(s.run.host_limit.value() == int64_t{16} << 30);
    CHECK_FALSE(s.run.gpu_limit.has_value());
    CHECK(s.inner.color == Color::green);
    CHECK(s.inner.on);
    CHECK(s.inner.share.value == 0.25);
    CHECK(s.stop == std::vector<std::string>{"a b", "null", "12"});
    CHECK(s.lengths[1] == 4096);
  }

  TEST_CASE("counts: auto, a number or a list without repetitions") {
    const auto read_counts = [](const std::string& text) {
      AutoCounts counts{{7}};
      const std::string problem =
          read_scalar(parse_yaml("n: " + text, {}).entries[0].value, counts);
      return std::pair(problem, counts.values);
    };
    CHECK(read_counts("auto").second.empty());
    CHECK(read_counts("3").second == std::vector{3});
    CHECK(read_counts("[2, 4, 1]").second == std::vector{2, 4, 1});
    CHECK(yaml_text(AutoCounts{{2, 4}}) == "[2, 4]");
    CHECK(yaml_text(AutoCounts{{2}}) == "2");
    CHECK(yaml_text(AutoCounts{}) == "auto");
    CHECK(yaml_text(AutoCounts{{2, 4}, true}) == "[2, 4, auto]");
    CHECK(json_of(AutoCounts{{2, 4}, true}).dump() == R"([2,4,"auto"])");
    CHECK(json_of(AutoCounts{{2}, true}).dump() == R"([2,"auto"])");
    CHECK(json_of(AutoCounts{{2, 4}}).dump() == "[2,4]");
    CHECK(json_of(AutoCounts{{2}}).dump() == "2");
    CHECK(json_of(AutoCounts{}).dump() == R"("auto")");
    CHECK(read_counts("[2, 2]").first == "names '2' twice");
    CHECK(read_counts("[4, auto]").second == std::vector{4});
    CHECK(read_counts("[auto, auto]").first == "names auto twice");
    for (const char* wrong : {"0", "-1", "x", "'auto'", "[]", "[1, 0]", "[1, 'auto']", "1.5"}) {
      CAPTURE(wrong);
      CHECK(read_counts(wrong).first.starts_with("expected auto or numbers of at least 1, found "));
      CHECK(read_counts(wrong).second == std::vector{7});
    }
  }

  TEST_CASE("layers in host memory: none, auto or a number") {
    const auto offload = [](const std::string& text) {
      return read("model: {path: m, offload: " + text + "}\n").model.offload;
    };
    CHECK(offload("none").layers == 0);
    CHECK(offload("0").layers == 0);
    CHECK(offload("27").layers == 27);
    CHECK(offload("auto").automatic());
    for (const char* text : {"none", "27", "auto"}) CHECK(yaml_text(offload(text)) == text);
    CHECK(json_of(offload("27")) == 27);
    CHECK(json_of(offload("auto")) == "auto");
    for (const char* bad : {"-1", "all", "1.5", "true", "\"auto\""}) {
      CAPTURE(bad);
      CHECK(message([&] {
              offload(bad);
            }).find("expected none, auto or a number of layers, found") != std::string::npos);
    }
  }

  TEST_CASE("a GPU to plan for is one of the table, or the error tells the nearest") {
    const auto gpu = [](const std::string& text) {
      GpuName name;
      const std::string problem = read_scalar(literal_node(text, "--set #1"), name);
      CHECK(name.value == (problem.empty() ? text : ""));
      return problem;
    };
    CHECK(gpu("h200") == "");
    CHECK(gpu("rtx-4090") == "");
    const std::string none = "no GPU of the table is called ";
    CHECK(gpu("rtx-409") == none + "'rtx-409'; did you mean 'rtx-4090'?");
    CHECK(gpu("a100") == none + "'a100'; did you mean 'a100-80' or 'a100-40'?");
    CHECK(gpu("tpu") == none + "'tpu'");
    CHECK(gpu("H200") == none + "'H200'; did you mean 'h200'?");
    CHECK(failure("run: {plan_for: [h100]}").find("expected the name of a GPU, found a list") !=
          std::string::npos);
    CHECK(yaml_text(GpuName{"l20"}) == "l20");
    CHECK(json_of(GpuName{"l20"}) == "l20");
    const Field schema = schema_of<Run>();
    const Field* field = find_field(schema, "plan_for");
    REQUIRE(field != nullptr);
    CHECK(std::string(field->text).find("in place of this machine's: " + gpu_names()) !=
          std::string::npos);
  }

  TEST_CASE("null means the default") {
    const Sample s = read("model: {path: m, compute: null}\nrun: null\ninner: ~\n");
    CHECK(s.model.compute == Compute::bf16);
    CHECK(s.run.batch == 1);
    CHECK(failure("model: null").find("duplicate") != std::string::npos);
    CHECK(message([] { read("model: {path: null}"); }) ==
          "a.yaml:1:8: model.path is not set | Hugging Face model folder, name of a known model, "
          "or synthetic:NAME (random weights); set it in a recipe or with --set model.path=VALUE");
  }

  TEST_CASE("each mistake has its text") {
    CHECK(failure("inenr: 1") ==
          "a.yaml:2:1: unknown key 'inenr' | did you mean 'inner'?  valid keys: model, run, "
          "sampling, output, inner, stop, lengths");
    CHECK(
        failure("inner: {ratio: 1}") ==
        "a.yaml:2:9: unknown key 'ratio' in section 'inner' | valid keys: share, limit, color, on");
    CHECK(failure("sampling: {temp: 1}").find("did you mean 'temperature'?") != std::string::npos);
    CHECK(failure("run: 3") == "a.yaml:2:6: run: expected a map of settings, found '3' | ");
    CHECK(failure("run: {threads: two}") ==
          "a.yaml:2:16: run.threads: expected an integer, found 'two' | threads is: CPU "
          "threads");
    CHECK(failure("run: {threads: \"2\"}").find("found the string '2'") != std::string::npos);
    CHECK(failure("run: {threads: 4294967296}").find("expected an integer of 32 bits") !=
          std::string::npos);
    CHECK(
        failure("run: {batch: 0}") ==
        "a.yaml:2:14: run.batch: 0 is out of range, expected >= 1 sequences | batch is: sequences "
        "that run together");
    CHECK(failure("sampling: {top_p: 0}").find("0 is out of range, expected 0 < x <= 1") !=
          std::string::npos);
    CHECK(failure("inner: {on: yes}").find("expected true or false, found 'yes'") !=
          std::string::npos);
    CHECK(failure("inner: {color: blue}").find("expected one of red, green, found 'blue'") !=
          std::string::npos);
    CHECK(failure("stop: {a: 1}").find("stop: expected text, found a map") != std::string::npos);
    CHECK(failure("inner: {color: geren}").find("found 'geren'; did you mean 'green'?") !=
          std::string::npos);
    CHECK(failure("lengths: [1, 0]").find("0 is out of range, expected >= 1") != std::string::npos);
    CHECK(failure("model2: {a: 1}").find("did you mean 'model'?") != std::string::npos);
  }

  TEST_CASE("one value stands for a list of one") {
    CHECK(read("model: {path: m}\nstop: .\n").stop == std::vector<std::string>{"."});
    CHECK(read("model: {path: m}\nlengths: 4Ki\n").lengths.front().value == 4096);
  }

  TEST_CASE("a key is found by its last parts") {
    CHECK(failure("temperature: 1").find("did you mean 'sampling.temperature'?") !=
          std::string::npos);
    CHECK(failure("path: m").find("did you mean 'model.path'?") != std::string::npos);
    CHECK(failure("run: {top_p: 1}").find("did you mean 'sampling.top_p'?") != std::string::npos);
    Sample sample;
    const Field root = fields_of(sample);
    const auto keys = [&](const char* word, bool near = false) {
      return fmt::format("{}", fmt::join(keys_like(root, word, near), " "));
    };
    CHECK(keys("top-p") == "sampling.top_p");
    CHECK(keys("sampling-top-p") == "sampling.top_p");
    CHECK(keys("p") == "");
    CHECK(keys("top-a") == "");
    CHECK(keys("colour") == "");
    CHECK(keys("colour", true) == "inner.color");
    CHECK(keys("xyzzy", true) == "");
  }

  TEST_CASE("near: one edit for short words, two for longer ones, swaps count one") {
    const auto near = [](const char* word) {
      return std::string(nearest(word, {"help", "temperature", "ratio", "hybrid", "n"}));
    };
    CHECK(near("temp") == "temperature");
    CHECK(near("kelp") == "help");
    CHECK(near("keep") == "");
    CHECK(near("ratoi") == "ratio");
    CHECK(near("hybird") == "hybrid");
    CHECK(near("hydrib") == "hybrid");
    CHECK(near("hidreb") == "");
    CHECK(near("m") == "");
  }

  TEST_CASE("what is required may be missing from a partial recipe") {
    Sample sample;
    Field root = fields_of(sample);
    const Node tree = parse("inner: {on: true, share: 0}");
    read_fields(root, tree, {}, Completeness::partial);
    CHECK(dump_yaml(root, &tree).find("\n  path:  ") != std::string::npos);
    CHECK(dump_yaml(root, &tree).find("# required\n") != std::string::npos);
    CHECK(message([&] {
            read_fields(root, parse("run: {batch: 0}"), {}, Completeness::partial);
          }).find("run.batch: 0 is out of range") != std::string::npos);
  }

  TEST_CASE("cross-field rules point at the field, or name it when it was never written") {
    CHECK(failure("inner: {on: true, share: 0}") ==
          "a.yaml:2:26: inner.share must not be 0 while inner.on is true | ");
  }

  TEST_CASE("sampling: penalties that scores stand, texts that can end something") {
    const auto refused = [](const std::string& text) {
      return message([&] {
        Sampling sampling;
        Field root = fields_of(sampling);
        read_fields(root, parse(text));
      });
    };
    CHECK(refused("stop: [\"\\n\", Ende, caf\u00e9]\nrepetition_penalty: 1.3\n") == "none");
    CHECK(refused("repetition_penalty: 1e-38\n")
              .find("1e-38 is out of range, expected 0.01 .. 100") != std::string::npos);
    CHECK(refused("stop: [Ende, '']\n").find("expected a text, found an empty one: leave it out") !=
          std::string::npos);
    Sampling sampling;
    Field root = fields_of(sampling);
    Node tree;
    tree.kind = Node::Kind::map;
    Node stop;
    stop.kind = Node::Kind::list;
    stop.items.push_back(literal_node("caf\xe9", "--stop"));
    merge(tree, nest("stop", stop));
    CHECK(message([&] {
            read_fields(root, tree);
          }).find("'caf?' has byte 0xe9, which is not UTF-8") != std::string::npos);
  }

  TEST_CASE("devices") {
    const auto device = [](const std::string& name) {
      Run run;
      Field fields = fields_of(run);
      return message([&] { read_fields(fields, parse(fmt::format("device: \"{}\"", name))); });
    };
    CHECK(device("gpu").find(
              "a.yaml:1:9: run.device: expected auto, cpu, cuda or cuda:N[,M..], found "
              "'gpu'") == 0);
    for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:0,1"})
      CHECK(device(good) == "none");
    for (const char* bad : {"cuda:", "cuda0", "cuda:0,", "cuda:x", ""})
      CHECK(device(bad) != "none");
  }

  TEST_CASE("cache kinds of later versions are refused, naming those that exist") {
    Cache cache;
    Field fields = fields_of(cache);
    CHECK(message([&] {
            read_fields(fields, parse("kind: hybrid9"));
          }).find("a.yaml:1:7: kind: expected one of full, streaming") == 0);
  }

  TEST_CASE("problems come together, in order, at most twenty") {
    CHECK(failure("sampling: {top_k: x}\nrun: {batch: 0, sed: 1}")
              .find("a.yaml:2:19: sampling.top_k: expected an integer") == 0);
    std::string text = "model: {path: m}\n";
    for (int i = 0; i < 30; ++i) text += fmt::format("wrong_{}: 1\n", i);
    try {
      read(text);
      FAIL("not thrown");
    } catch (const InvalidRecipe& e) {
      CHECK(e.problems().size() == 20);
      CHECK(e.kind() == ErrorKind::recipe);
    }
  }

  TEST_CASE("paths are relative to their file and know the home folder and the environment") {
    setenv("TANDEM_TEST_DIR", "/data", 1);
    setenv("HOME", "/home/u", 1);
    unsetenv("TANDEM_TEST_NONE");
    const auto resolve = [](const std::string& text) {
      Node node = scalar_node(text, {std::make_shared<const std::string>("f"), "recipes/a", 1, 1});
      std::filesystem::path path;
      const std::string problem = read_scalar(node, path);
      return problem.empty() ? path.string() : problem;
    };
    CHECK(resolve("../x.txt") == "recipes/x.txt");
    CHECK(resolve("/x.txt") == "/x.txt");
    CHECK(resolve("~/x") == "/home/u/x");
    CHECK(resolve("${env:TANDEM_TEST_DIR}/x") == "/data/x");
    CHECK(resolve("-") == "-");
    CHECK(resolve("${env:TANDEM_TEST_NONE}/x") ==
          "the environment variable 'TANDEM_TEST_NONE' is not set");
    CHECK(resolve("${env:X") == "'${env:X' lacks its closing brace");
  }

  TEST_CASE("a path of a shape does not become the name of one") {
    const auto path_of = [](const std::string& written) {
      Model model;
      Field root = fields_of(model);
      read_fields(root, parse("path: '" + written + "'\n"));
      return model.path.value;
    };
    CHECK(path_of("synthetic:llama-68m") == "synthetic:llama-68m");
    CHECK(path_of("synthetic:llama-68m/../qwen") == "synthetic:./qwen");
    CHECK(path_of("synthetic:a/../b/c.json") == "synthetic:b/c.json");
  }

  TEST_CASE("bare model names are looked up, missing inputs named") {
    const TemporaryFolder folder;
    std::filesystem::create_directories(folder / "models/tiny");
    const Folders models = {folder / "models"};
    Sample sample;
    const auto check = [&](const std::string& text) {
      Field fields = fields_of(sample);
      const Node tree = parse(text);
      read_fields(fields, tree, models);
      check_inputs(fields, tree, models);
    };
    CHECK(message([&] { check("model: {path: tiny}"); }) == "none");
    CHECK(sample.model.path.value == (folder / "models/tiny").string());
    CHECK(message([&] { check("model: {path: synthetic:llama-68m}"); }) == "none");
    CHECK(message([&] { check("model: {path: tony}"); }) ==
          "a.yaml:1:15: model 'tony' not found | looked in the working directory, " +
              (folder / "models").string());
    CHECK(message([&] { check("model: {path: tiny, state: no/s.bin}"); }) ==
          "a.yaml:1:28: file 'no/s.bin' not found | check the path in model.state");
    setenv("TANDEM_TEST_DIR", folder.path().c_str(), 1);
    CHECK(message([&] { check("model: {path: tiny, state: '${env:TANDEM_TEST_DIR}/no.bin'}"); }) ==
          "a.yaml:1:28: file '" + (folder / "no.bin").string() +
              "' (spelled '${env:TANDEM_TEST_DIR}/no.bin') not found | check the path in "
              "model.state");
  }
}
