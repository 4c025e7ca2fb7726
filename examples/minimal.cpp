// Speculative decoding in one file: two models, one text, no library code for drafts.
//
//   minimal TARGET DRAFT "prompt"      for example: minimal tiny-16m tiny-2m "The keeper climbed"
//
// The small model drafts a few tokens. The large one reads all of them in one forward, keeps those
// that it would have written itself, and adds one more. The text is the large model's own greedy
// text, which the program checks at the end.
#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace {

using Ids = std::vector<int32_t>;

constexpr int kDrafted = 4;    // tokens per step
constexpr int kNewTokens = 48;  // length of the answer

/// Returns the most likely token. shapes: logits [vocab]
int32_t best_of(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

/// A session, and the token that its model would write next.
class Writer {
 public:
  /// Prefill: all tokens but the last go through the model at once, attended in full. The last one
  /// is read apart, for its logits say what comes next.
  Writer(tandem::Model& model, const Ids& prompt) : session_(model.session()) {
    session_.append(std::span(prompt).first(prompt.size() - 1));
    next_ = read({prompt.back()}).front();
  }

  /// Reads tokens and returns what the model would write after each of them.
  Ids read(const Ids& ids) {
    const tandem::Logits logits = session_.read(ids);
    Ids best;
    for (int row = 0; row < logits.rows; ++row) best.push_back(best_of(logits.row(row)));
    next_ = best.back();
    return best;
  }

  /// Rollback: forgets all after the first n tokens of the text.
  void rewind(size_t n) { session_.rewind(static_cast<int64_t>(n)); }

  int32_t next() const { return next_; }
  void set_next(int32_t id) { next_ = id; }
  size_t length() const { return session_.ids().size(); }

 private:
  tandem::Session session_;
  int32_t next_ = 0;
};

/// Draft: the small model writes a few tokens, one at a time, after a token that is certain.
Ids draft(Writer& small, int32_t certain) {
  Ids drafted;
  for (int32_t id = certain; static_cast<int>(drafted.size()) < kDrafted; id = small.next()) {
    small.read({id});
    drafted.push_back(small.next());
  }
  return drafted;
}

/// Verification: the large model reads the certain token and all drafted ones in one forward. Draft
/// token i is accepted if it is what the model would have written there, and all before it are.
/// Returns the accepted tokens.
Ids verify(Writer& large, int32_t certain, const Ids& drafted) {
  const size_t before = large.length();
  Ids rows = {certain};
  rows.insert(rows.end(), drafted.begin(), drafted.end());
  const Ids wanted = large.read(rows);
  const auto differs = std::ranges::mismatch(drafted, wanted).in1;
  const Ids accepted(drafted.begin(), differs);
  // The text keeps the certain token and the accepted ones. The model's own token after the last of
  // them is certain too: it begins the next step.
  large.rewind(before + 1 + accepted.size());
  large.set_next(wanted[accepted.size()]);
  return accepted;
}

/// The same text without a draft.
Ids plain(tandem::Model& model, const Ids& prompt) {
  return model.session().generate(prompt, {.max_tokens = kNewTokens}).ids;
}

int run(const std::string& target, const std::string& draft_name, const std::string& prompt_text) {
  // f32, so that a forward of five rows rounds as five forwards of one row do.
  const tandem::ModelOptions options{.device = "cpu", .context = 1024, .sessions = 2,
                                     .set = {"model.compute=f32"}};
  tandem::Model large_model = tandem::Model::open(target, options);
  tandem::Model small_model = tandem::Model::open(draft_name, options);
  const Ids prompt = large_model.encode(prompt_text);
  Writer large(large_model, prompt), small(small_model, prompt);

  Ids answer;
  int steps = 0;
  for (; static_cast<int>(answer.size()) < kNewTokens; ++steps) {
    const int32_t certain = large.next();
    const size_t before = small.length();
    const Ids drafted = draft(small, certain);
    const Ids accepted = verify(large, certain, drafted);
    answer.push_back(certain);
    answer.insert(answer.end(), accepted.begin(), accepted.end());
    // The small model forgets its rejected tokens, and reads the last one if all were accepted.
    if (accepted.size() == drafted.size())
      small.read({drafted.back()});
    else
      small.rewind(before + 1 + accepted.size());
  }
  answer.resize(kNewTokens);

  std::printf("%s%s\n", prompt_text.c_str(), large_model.decode(answer).c_str());
  std::printf("%d tokens in %d steps\n", kNewTokens, steps);
  const bool same = answer == plain(large_model, prompt);
  std::printf("plain decoding writes %s text\n", same ? "the same" : "another");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: minimal TARGET DRAFT \"prompt\"\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "minimal: %s\n  hint: %s\n", e.what(), e.hint_text().c_str());
    return 1;
  }
}
