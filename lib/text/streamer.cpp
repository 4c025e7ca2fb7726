#include "text/streamer.h"

#include "text/tokenizer.h"

namespace tandem::text {

Streamer::Streamer(const Tokenizer& tokenizer, StreamerOptions options)
    : tokenizer_(&tokenizer), options_(options), drop_space_(tokenizer.drops_leading_space()) {}

void Streamer::push(int32_t id, std::string& out) {
  if (options_.skip_special && tokenizer_->is_special(id)) return;
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return;
  if (drop_space_ && bytes.front() == ' ') bytes.remove_prefix(1);
  drop_space_ = false;
  assembler_.append(bytes, out);
}

void Streamer::flush(std::string& out) {
  assembler_.finish(out);
  drop_space_ = tokenizer_->drops_leading_space();
}

std::string Streamer::push(int32_t id) {
  std::string out;
  push(id, out);
  return out;
}

std::string Streamer::flush() {
  std::string out;
  flush(out);
  return out;
}

}  // namespace tandem::text
