#pragma once
#include <memory>

#include "io/gguf.h"
#include "model/spec/config.h"
#include "model/weights/weight_source.h"

namespace tandem::model {

/// Reads the metadata of a GGUF file as a config.json with the same meaning.
/// errors   kind input: another architecture (named, with those known), a key missing or out of
///          range, as parse_config
ModelConfig gguf_config(const io::Gguf& file);

/// Reads the matrices of a GGUF file. Blocks come as codes in the native format, and are decoded
/// exactly where numbers are read. Rows of q and k come in the order of Hugging Face.
/// errors   kind input: missing tensors and wrong shapes, at most 20; biases that the configuration
///          does not have
std::unique_ptr<WeightSource> gguf_source(const ModelConfig& config, io::Gguf file);

}  // namespace tandem::model
