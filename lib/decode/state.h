#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "decode/engine.h"
#include "io/safetensors.h"

namespace tandem::decode {

/// A saved prefill: the tokens of one sequence and the K and V pages that are alive, as a
/// safetensors file. Tensors: "tokens" [n] i32; "k.LAYER.PAGE" and "v.LAYER.PAGE" [Hkv, 64, d] as
/// they lie in the cache (slots past the last token hold nothing of meaning); where a policy
/// chooses by the last queries, "q.LAYER" [n, Hq, d], those of the last n tokens. Layers of a page
/// group (kv/page_groups.h) have the same pages. Metadata names the format, several page groups,
/// the model's fingerprint and settings, the form of activations (model.activations), the cache
/// policy and the date of a chat, and has a checksum of each head of a page, so that any part of
/// the ranks of a run checks what it reads.
struct SavedState {
  io::Safetensors file;
  std::vector<int32_t> tokens;
  std::string chat_date = {};  // that a chat template wrote; empty: none
};

/// chat_date  that a chat template wrote into the tokens; empty: none
/// existing   as AtomicFile takes it
/// errors   kind input: cannot write; the name is taken
void save_state(const std::filesystem::path& path, Engine& engine, int slot,
                std::span<const int32_t> tokens, io::Existing existing = io::Existing::replaced,
                const std::string& chat_date = {});

/// Opens and checks a state against a model, before any memory is planned.
/// errors   kind input: not a state, another model or number type, tokens out of range
SavedState open_state(const std::filesystem::path& path, const ModelFiles& files, DType dtype);
/// The same checks on bytes; `where` names them in messages.
SavedState parse_state(io::Safetensors file, const ModelFiles& files, DType dtype);

/// A new sequence that holds the state. Later text equals that of the run that saved it, bit for
/// bit in f32.
/// errors   kind input: the policy needs tokens that the one that saved gave back; data are
///          damaged; kind memory
int restore_state(const SavedState& state, Engine& engine, kv::Readers readers);

}  // namespace tandem::decode
