// An attention policy of one's own: each query head reads the first tokens, the latest ones, and
// every n-th token between them.
//
//   kv_policy MODEL "text"
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "tandem/tandem.h"

namespace {

class Strided final : public tandem::Policy {
 public:
  Strided(int first, int latest, int stride) : first_(first), latest_(latest), stride_(stride) {}

  std::string name() const override { return "strided"; }

  void select(const tandem::Query& query, tandem::Selection& selection) const override {
    const int n = query.position + 1;
    for (int token = 0; token < n; ++token)
      if (token < first_ || token >= n - latest_ || token % stride_ == 0)
        selection.tokens.push_back(token);
  }

 private:
  int first_, latest_, stride_;
};

/// The mean log-probability of the tokens after the first eight, under a cache.
double mean_log_prob(const std::string& path, const tandem::Cache& cache, const std::string& text) {
  tandem::Model model =
      tandem::Model::open(path, {.cache = cache, .device = "cpu", .context = 4096});
  const auto ids = model.encode(text);
  constexpr size_t n = 8;
  if (ids.size() <= n) throw tandem::Error(tandem::ErrorKind::input, "text", "is too short");
  tandem::Session session = model.session();
  session.append(std::span(ids).first(n));
  double sum = 0;
  const auto log_probs = session.log_probs(std::span(ids).subspan(n));
  for (const float x : log_probs) sum += x;
  return sum / static_cast<double>(log_probs.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: kv_policy MODEL \"text\"\n");
    return 2;
  }
  try {
    const auto strided = std::make_shared<Strided>(4, 8, 4);
    std::printf("full     %.4f per token\n", mean_log_prob(argv[1], {}, argv[2]));
    std::printf("strided  %.4f per token\n", mean_log_prob(argv[1], strided, argv[2]));
    return 0;
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "kv_policy: %s\n  hint: %s\n", e.what(), e.hint_text().c_str());
    return 1;
  }
}
