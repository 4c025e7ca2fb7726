#include <array>

#include "base/error.h"
#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {
namespace {

constexpr std::array kPhi3Fused = {FusedTensor{Role::qkv, "self_attn.qkv_proj.weight"},
                                   FusedTensor{Role::gate_up, "mlp.gate_up_proj.weight"}};

/// errors   kind input: only a part of each head is rotated, as in Phi-4-mini
void refuse_partial_rotation(const io::Json& j, const std::string& where) {
  const double share = io::find_double(j, "partial_rotary_factor", where).value_or(1);
  if (share != 1)
    throw input_error(where, "key 'partial_rotary_factor': expected 1, found {}", share)
        .hint("choose another model: rotating a part of each head is not supported");
}

}  // namespace

const Family kPhi3 = {.architecture = "Phi3ForCausalLM",
                      .model_type = "phi3",
                      .members = "Phi-4, Phi-3 with 4K tokens",
                      .max_context = 4096,
                      .read_layers =
                          [](const io::Json& j, const std::string& where, ModelConfig& c) {
                            refuse_partial_rotation(j, where);
                            if (const io::Json* rope = io::find_object(j, "rope_parameters", where))
                              refuse_partial_rotation(*rope, where);
                            if (j.contains("sliding_window")) read_window(j, where, 0, c);
                          },
                      .fused = kPhi3Fused};

}  // namespace tandem::model
