#include "tools/training/show_samples.h"

#include <fmt/format.h>

#include <string>

#include "io/json.h"
#include "io/jsonl.h"

namespace tandem::tools {
namespace {

constexpr const char* kGreen = "32";
constexpr size_t kLineWidth = 100;

/// What a file may not do to a terminal: control characters but line breaks and tabs become '?'.
std::string harmless(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too, two bytes in UTF-8.
    const bool c1 =
        c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) text.replace(i, 2, "?");
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) text[i] = '?';
  }
  return text;
}

/// Calls take(tokens, supervised) for the parts of a sample in turn.
template <class Take>
void for_each_part(const train::SampleView& sample, const Take& take) {
  size_t at = 0;
  const auto part = [&](size_t end, bool supervised) {
    if (end > at) take(sample.ids.subspan(at, end - at), supervised);
    at = end;
  };
  for (const train::TokenSpan& span : sample.supervised) {
    part(static_cast<size_t>(span.begin), false);
    part(static_cast<size_t>(span.end), true);
  }
  part(sample.ids.size(), false);
}

class TextView {
 public:
  TextView(cli::Output& out, const text::Tokenizer* tokenizer) : out_(out), tokenizer_(tokenizer) {}

  void show(const train::SampleView& sample) {
    if (tokenizer_ != nullptr) show_text(sample);
    show_ids(sample);
  }

 private:
  std::string marked(const std::string& text) const {
    return "[[" + out_.painted(text, kGreen) + "]]";
  }

  void show_text(const train::SampleView& sample) {
    for_each_part(sample, [&](std::span<const int32_t> ids, bool supervised) {
      const std::string text = harmless(tokenizer_->decode(ids));
      out_.write(supervised ? marked(text) : text);
    });
    out_.write("\n");
  }

  void show_ids(const train::SampleView& sample) {
    std::string line = "ids";
    for_each_part(sample, [&](std::span<const int32_t> ids, bool supervised) {
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool opens = supervised && i == 0, closes = supervised && i + 1 == ids.size();
        const std::string word =
            fmt::format("{}{}{}", opens ? "[[" : "", ids[i], closes ? "]]" : "");
        if (line.size() + 1 + word.size() > kLineWidth) {
          out_.line(line);
          line = "   ";
        }
        line += ' ' + word;
      }
    });
    out_.line(line);
  }

  cli::Output& out_;
  const text::Tokenizer* tokenizer_;
};

std::string json_line(const train::Dataset& data, int32_t index, int64_t step, size_t micro_batch,
                      const text::Tokenizer* tokenizer) {
  const train::SampleView sample = data[index];
  io::Json spans = io::Json::array();
  for (const train::TokenSpan& span : sample.supervised) spans.push_back({span.begin, span.end});
  io::Json line = {{"where", data.where(index)},
                   {"step", step + 1},
                   {"micro_batch", micro_batch + 1},
                   {"ids", sample.ids},
                   {"supervised", spans}};
  if (tokenizer != nullptr) line["text"] = tokenizer->decode(sample.ids);
  return io::jsonl_line(line);
}

std::string micro_batch_line(const train::MicroBatch& batch, const train::MicroPlan& plan,
                             int64_t step, size_t number, size_t of, const train::Dataset& data) {
  int64_t rows = 0, supervised = 0;
  for (const int32_t sample : plan.samples) {
    rows += data[sample].rows();
    supervised += data[sample].n_supervised();
  }
  return fmt::format(
      "=== step {}, micro-batch {} of {}: {} documents, {} tokens, {} supervised, {} of padding",
      step + 1, number + 1, of, plan.samples.size(), rows, supervised,
      static_cast<int64_t>(batch.tokens.size()) - rows);
}

}  // namespace

void show_samples(cli::Context& cx, const train::Epoch& epoch, const train::Dataset& data,
                  const text::Tokenizer* tokenizer, int64_t n) {
  TextView view(cx.out, tokenizer);
  for (int64_t step = 0; step < epoch.n_steps() && n > 0; ++step) {
    const auto plans = epoch.step(step);
    for (size_t i = 0; i < plans.size() && n > 0; ++i) {
      const train::MicroBatch batch = make_micro_batch(data, plans[i]);
      const bool as_text = cx.format() == "text";
      if (as_text) cx.out.line(micro_batch_line(batch, plans[i], step, i, plans.size(), data));
      for (size_t d = 0; d < plans[i].samples.size() && n > 0; ++d, --n) {
        const int32_t index = plans[i].samples[d];
        if (!as_text) {
          cx.out.write(json_line(data, index, step, i, tokenizer));
          continue;
        }
        const train::SampleView sample = data[index];
        cx.out.line(fmt::format("--- document {}, rows {} to {}: {}, {} supervised", d + 1,
                                batch.document_begin[d], batch.document_begin[d + 1] - 1,
                                data.where(index), sample.n_supervised()));
        view.show(sample);
      }
    }
  }
}

}  // namespace tandem::tools
