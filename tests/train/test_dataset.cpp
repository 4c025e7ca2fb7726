#include <doctest/doctest.h>

#include "base/parallel.h"
#include "error_text.h"
#include "eval/perplexity.h"
#include "temporary_folder.h"
#include "train/data/training_data.h"
#include "train_testing.h"

using namespace tandem;
using namespace tandem::train;
using test::encoded;
using test::input_error_text;
using test::instruction;
using test::tiny_tokenizer;

namespace {

DataSettings plain() {
  DataSettings settings;
  settings.template_name = TemplateName::plain;
  return settings;
}

BatchSettings at_most(int64_t max_tokens, Overlong overlong = Overlong::truncate_right) {
  BatchSettings settings;
  settings.max_tokens = {max_tokens};
  settings.overlong = overlong;
  return settings;
}

std::vector<int32_t> supervised_ids(const SampleView& sample) {
  std::vector<int32_t> ids;
  for (const TokenSpan& span : sample.supervised)
    ids.insert(ids.end(), sample.ids.begin() + span.begin, sample.ids.begin() + span.end);
  return ids;
}

}  // namespace

TEST_SUITE("train/dataset") {
  TEST_CASE("answers with the end token are supervised; records without one are dropped") {
    const Dataset data = encoded(
        {instruction("Say a", "a"), instruction("Say nothing", ""), instruction("Say b", "b c")},
        plain());
    CHECK(data.counts().records == 3);
    CHECK(data.counts().unsupervised == 1);
    REQUIRE(data.size() == 2);
    CHECK(data.where(1) == "r");
    CHECK(tiny_tokenizer().decode(data[1].ids) == "<|begin_of_text|>Say b\nb c<|end_of_text|>");
    CHECK(tiny_tokenizer().decode(supervised_ids(data[1])) == "b c<|end_of_text|>");
    CHECK(data.counts().rows == data[0].rows() + data[1].rows());
    CHECK(data.counts().supervised == data[0].n_supervised() + data[1].n_supervised());
    CHECK(data.counts().endless == 0);
  }

  TEST_CASE("an answer that does not end with a control token is counted") {
    DataSettings settings = plain();
    settings.template_name = TemplateName::custom;
    settings.custom = {.prompt = "{instruction}", .prompt_with_input = {}, .answer = "{output}"};
    CHECK(encoded({instruction("a", "b")}, settings).counts().endless == 1);
  }

  TEST_CASE("samples that are too long: cut on the right, dropped, or refused") {
    const std::vector<Record> records = {instruction("Say a", "a"),
                                         instruction("Say a", "a a a a a a a a a a"),
                                         instruction("Say a a a a a a a a a a a", "a")};
    const Dataset all = encoded(records, plain());
    const auto limit = static_cast<int64_t>(all[0].ids.size()) + 1;
    REQUIRE(all[1].ids.size() > size_t(limit));
    REQUIRE(all[2].rows() > limit);  // even its prompt

    const Dataset cut = encoded(records, plain(), at_most(limit));
    REQUIRE(cut.size() == 2);
    CHECK(cut[1].ids.size() == size_t(limit));
    CHECK(std::ranges::equal(cut[1].ids, all[1].ids.first(size_t(limit))));
    CHECK(cut.counts().truncated == 1);
    CHECK(cut.counts().unsupervised == 0);
    CHECK(cut.counts().answer_cut == 1);
    CHECK(cut.counts().endless == 0);  // it was cut, not written without an end
    CHECK(cut.longest_rows() == limit - 1);

    const Dataset dropped = encoded(records, plain(), at_most(limit, Overlong::drop));
    CHECK(dropped.size() == 1);
    CHECK(dropped.counts().too_long == 2);

    std::vector<Record> named = records;
    named[1].where = "d.json:5";
    CHECK(input_error_text([&] { encoded(named, plain(), at_most(limit, Overlong::error)); }) ==
          fmt::format("d.json:5: has {} tokens, but train.max_tokens is {}", all[1].ids.size(),
                      limit));
  }

  TEST_CASE("a run's data: validation drawn from it, or of its own") {
    const test::TemporaryFolder folder;
    std::string lines;
    for (int i = 0; i < 20; ++i)
      lines += fmt::format("{{\"prompt\": \"{}\", \"output\": \"a\"}}\n", i);
    DataSettings settings = plain();
    settings.path = folder.write("train.jsonl", lines);
    const SampleEncoder encoder(settings, &tiny_tokenizer(), {}, tiny_tokenizer().vocab_size());
    const TrainingData all = load_training_data(settings, {}, encoder, 3);
    CHECK(all.train.size() == 20);
    CHECK(all.val.empty());
    settings.val_size = 5;
    const TrainingData split = load_training_data(settings, {}, encoder, 3);
    CHECK(split.train.size() == 15);
    CHECK(split.val.size() == 5);
    CHECK(&split.validation() == &split.data);
    settings.val_size = {};
    settings.val_path = folder.write("val.jsonl", "{\"prompt\": \"x\", \"output\": \"b\"}\n");
    const TrainingData two = load_training_data(settings, {}, encoder, 3);
    CHECK(two.train.size() == 20);
    CHECK(two.val == std::vector<int32_t>{0});
    CHECK(tiny_tokenizer().decode(supervised_ids(two.validation()[0])) == "b<|end_of_text|>");
    settings.path = folder.write("empty.json", R"([{"prompt": "x", "output": ""}])");
    CHECK(input_error_text([&] { load_training_data(settings, {}, encoder, 3); })
              .ends_with("empty.json: none of 1 records can be learned: 1 lack an answer, 0 are "
                         "too long, 0 have an answer that begins beyond train.max_tokens"));
  }

  TEST_CASE("a text is cut into pieces that lose nothing, each with BOS") {
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("Line {} of the log.\n", i);
    const Dataset data =
        encoded({{Document{.text = text, .ends = true}, "r"}}, {}, at_most(50, Overlong::error));
    const auto whole = tiny_tokenizer().encode(text + "<|end_of_text|>", {.add_bos = false});
    REQUIRE(data.size() == static_cast<int32_t>((whole.size() + 48) / 49));
    std::vector<int32_t> joined;
    for (int32_t i = 0; i < data.size(); ++i) {
      CHECK(data[i].ids[0] == tiny_tokenizer().bos_id());
      CHECK(data[i].ids.size() <= 50);
      const auto ids = supervised_ids(data[i]);
      joined.insert(joined.end(), ids.begin(), ids.end());
    }
    CHECK(joined == whole);
    CHECK(data.counts().supervised == static_cast<int64_t>(whole.size()));
  }

  TEST_CASE("a text's pieces are the windows whose perplexity pig-eval measures") {
    const auto path = test::source_dir() / "recipes/demo/lighthouse-logbook.txt";
    const decode::ModelFiles files = decode::open_model(test::tiny_folder(), 0);
    const auto windows = eval::load_windows(path, files, 1000);
    const Dataset data = encoded(read_records(path, RecordForm::automatic), {}, at_most(1000));
    REQUIRE(data.size() == static_cast<int32_t>(windows.size()));
    for (int32_t i = 0; i < data.size(); ++i)
      CHECK(std::ranges::equal(data[i].ids, windows[static_cast<size_t>(i)].ids));
  }

  TEST_CASE("chats: a prompt in the middle is not supervised, the tail is not read") {
    const Chat chat = {{"user", "Hi"}, {"assistant", "Yes"}, {"user", "Bye"}, {"assistant", "No"}};
    const Chat longer = {{"user", "Hi"},
                         {"assistant", "Yes"},
                         {"user", "Bye"},
                         {"assistant", "No"},
                         {"user", "Are you still there?"}};
    const Dataset data = encoded({{chat, "r"}, {longer, "r"}});
    REQUIRE(data.size() == 2);
    CHECK(data[0].supervised.size() == 2);
    CHECK(tiny_tokenizer().decode(supervised_ids(data[0])) == "Yes<|eot_id|>No<|eot_id|>");
    CHECK(std::ranges::equal(data[0].ids, data[1].ids));
    CHECK(data[0].ids[0] == tiny_tokenizer().bos_id());
    CHECK(data[0].ids[1] != tiny_tokenizer().bos_id());
  }

  TEST_CASE("any number of threads gives the same samples, and the first error of the file") {
    std::vector<Record> records;
    for (int i = 0; i < 500; ++i) {
      records.push_back(instruction(fmt::format("Say {}", i), fmt::format("{}", i * i)));
      records.back().where = fmt::format("line {}", i);
    }
    const int threads = max_threads();
    std::vector<std::vector<int32_t>> ids;
    for (const int n : {1, 4}) {
      set_threads(n);
      const Dataset data = encoded(records, plain());
      auto& all = ids.emplace_back();
      for (int32_t i = 0; i < data.size(); ++i)
        all.insert(all.end(), data[i].ids.begin(), data[i].ids.end());
    }
    CHECK(ids[0] == ids[1]);
    std::get<Instruction>(records[130].content).output = "\xff";
    std::get<Instruction>(records[400].content).output = "\xff";
    const std::string error = input_error_text([&] { encoded(records, plain()); });
    CHECK(error.find("line 130") != std::string::npos);
    set_threads(threads);
  }

  TEST_CASE("progress may end the work") {
    const SampleEncoder encoder(plain(), &tiny_tokenizer(), {}, tiny_tokenizer().vocab_size());
    const std::vector<Record> records = {instruction("a", "b")};
    CHECK_THROWS_AS(Dataset(records, encoder, {}, [](int64_t, int64_t) { return false; }), Error);
  }

  TEST_CASE("tokens are taken as they are, and need no tokenizer") {
    const std::vector<Record> records = {{Sample{{5, 6, 7, 8}, {{2, 3}}}, "d:1"},
                                         {Sample{{5, 9}, {}}, "d:2"}};
    const Dataset data(records, SampleEncoder({}, nullptr, {}, 10), {});
    REQUIRE(data.size() == 1);
    CHECK(std::ranges::equal(data[0].ids, std::vector<int32_t>{5, 6, 7}));
    CHECK(data.counts().unsupervised == 1);
    CHECK(data.counts().endless == 0);
    CHECK(input_error_text([&] { Dataset(records, SampleEncoder({}, nullptr, {}, 8), {}); }) ==
          "d:1: has the token id 8, but the model has 8 tokens");
    CHECK(input_error_text([] {
            const std::vector<Record> text = {instruction("a", "b")};
            Dataset(text, SampleEncoder({}, nullptr, {}, 8), {});
          }) == "r: text needs a tokenizer, but the model has none");
  }

  TEST_CASE("a fingerprint changes with a token and with a mask") {
    const auto fingerprint = [](const Sample& sample) {
      const std::vector<Record> records = {{sample, "r"}};
      return Dataset(records, SampleEncoder({}, nullptr, {}, 10), {}).fingerprint();
    };
    const std::string one = fingerprint({{5, 6, 7}, {{1, 3}}});
    CHECK(one == fingerprint({{5, 6, 7}, {{1, 3}}}));
    CHECK(one != fingerprint({{5, 8, 7}, {{1, 3}}}));
    CHECK(one != fingerprint({{5, 6, 7}, {{2, 3}}}));
  }
}
