#include <array>

#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {
namespace {

constexpr std::array kPhi3Fused = {StoredAs{Role::qkv, "self_attn.qkv_proj.weight"},
                                   StoredAs{Role::gate_up, "mlp.gate_up_proj.weight"}};

}  // namespace

const Family kPhi3 = {.architecture = "Phi3ForCausalLM",
                      .model_type = "phi3",
                      .members = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
                      .max_context = 4096,
                      .rms_eps = 1e-5,
                      .partial = true,
                      .read_layers =
                          [](const io::Json& j, const std::string& where, ModelConfig& c) {
                            if (j.contains("sliding_window"))
                              read_window(j, where, c.layers_from(0), c);
                          },
                      .stored = kPhi3Fused};

}  // namespace tandem::model
