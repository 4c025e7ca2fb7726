#pragma once
#include <string>
#include <string_view>

namespace tandem::text {

/// What the SentencePiece library takes on trust when it loads a serialized ModelProto: the wire
/// format is walked, and the double array of the character map must not point outside itself.
/// errors   kind input at `where`
void check_sentencepiece_model(std::string_view model, const std::string& where);

/// The same model with normalizer_spec.add_dummy_prefix = false.
std::string without_dummy_prefix(std::string model);

}  // namespace tandem::text
