#pragma once
#include "decode/model_files.h"
#include "temporary_folder.h"

namespace tandem::fuzz {

/// The smallest model there can be, for saved states of a few hundred bytes.
inline const decode::ModelFiles& state_model() {
  static const decode::ModelFiles files = [] {
    const test::TemporaryFolder folder;
    folder.write("config.json",
                 R"({"architectures":["LlamaForCausalLM"],"hidden_size":2,"num_hidden_layers":1,)"
                 R"("num_attention_heads":1,"intermediate_size":2,"vocab_size":8,)"
                 R"("max_position_embeddings":128})");
    return decode::open_model("synthetic:" + (folder / "config.json").string(), 1);
  }();
  return files;
}

}  // namespace tandem::fuzz
