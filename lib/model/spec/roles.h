#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "model/spec/config.h"

namespace tandem::model {

/// Roles of matrices and vectors in a model: first the roles of checkpoints, then the stacks that
/// products multiply.
enum class Role : uint8_t {
  embedding,
  attn_pre,  // norm before attention
  q,
  k,
  v,
  o,
  q_bias,
  k_bias,
  v_bias,
  o_bias,
  ffn_pre,  // norm before the FFN
  gate,
  up,
  down,
  gate_bias,
  up_bias,
  down_bias,
  out_norm,
  head,
  q_norm,
  k_norm,
  q_row_norm,  // norms of all heads at once
  k_row_norm,
  attn_post,     // norm of attention's output
  ffn_post,      // norm of the FFN's output
  qkv,           // q, k and v
  gate_up,       // gate and up, or rows of their set
  rest_gate_up,  // rows of gate and up outside the set
  rest_down,     // columns of down outside the set
};

/// Parts of a layer that are used together, in the order of a forward; each has its own place.
/// Channels of an FFN may be divided in a set, which drafts read, and the rest.
enum class LayerPart : uint8_t { attention, ffn, rest, outside };
inline constexpr std::array kLayerParts = {LayerPart::attention, LayerPart::ffn, LayerPart::rest};

/// Rows or columns that ranks divide; first_rank: rank 0 has all.
enum class Cut : uint8_t { none, rows, columns, first_rank };
/// Rows or columns that stay together: those of a head, else one.
enum class Unit : uint8_t { none, query_head, kv_head, neuron, vocabulary };
/// Numbers of rows and columns; stack: the sum of its members.
enum class Extent : uint8_t { one, dim, q, kv, ffn, head, vocabulary, stack };

/// Names a matrix or a vector of a model.
struct MatrixId {
  Role role = Role::q;
  int layer = 0;    // 0 outside the layers
  int expert = -1;  // an FFN of several in a layer; -1: the layer has one

  auto operator<=>(const MatrixId&) const = default;
};

struct RoleInfo {
  Role role;
  const char* word;         // in recipes and reports
  const char* planned;      // its product in plans
  std::string_view tensor;  // canonical name, after "model.layers.N." if in a layer; stacks: empty
  Extent out, in;
  Role stack;        // the product that multiplies it, maybe itself
  LayerPart part;    // outside: of no layer
  bool into_stream;  // its product is added to the residual stream
  Cut cut;
  Unit unit;
  int random_id;  // seed of synthetic numbers
  bool (*present)(const ModelConfig&);
};
const RoleInfo& info(Role role);

/// All, in the order of the enumeration.
std::span<const Role> all_roles();

/// The matrices of a layer, in the order of seeds and flat buffers of training.
inline constexpr std::array kLayerRoles = {Role::q,    Role::k,  Role::v,   Role::o,
                                           Role::gate, Role::up, Role::down};
/// The products of a layer, in the order of a forward, channels undivided.
inline constexpr std::array kLayerStacks = {Role::qkv, Role::o, Role::gate_up, Role::down};
/// The same, and those of the rest of divided channels.
inline constexpr std::array kPackedRoles = {
    Role::qkv, Role::o, Role::gate_up, Role::down, Role::rest_gate_up, Role::rest_down};

/// Place of a role in one of these, which has it.
template <size_t n>
constexpr size_t place_in(const std::array<Role, n>& roles, Role role) {
  size_t i = 0;
  while (i < n && roles[i] != role) ++i;
  return i;
}

/// Place of a layer's product among those of all layers, [layers, kLayerStacks].
constexpr size_t stack_index(int layer, Role stack) {
  return static_cast<size_t>(layer) * kLayerStacks.size() + place_in(kLayerStacks, stack);
}

/// Place of a layer's matrix among those of all layers, [layers, kLayerRoles].
constexpr size_t matrix_index(int layer, Role role) {
  return static_cast<size_t>(layer) * kLayerRoles.size() + place_in(kLayerRoles, role);
}

/// One value for each of some roles.
template <class T, const auto& kOf>
struct ByRole : std::array<T, kOf.size()> {
  using Values = std::array<T, kOf.size()>;
  T& operator[](Role role) { return Values::operator[](place_in(kOf, role)); }
  const T& operator[](Role role) const { return Values::operator[](place_in(kOf, role)); }
};
template <class T>
using PerMatrix = ByRole<T, kLayerRoles>;
template <class T>
using PerStack = ByRole<T, kLayerStacks>;

inline bool in_layers(Role role) { return info(role).part != LayerPart::outside; }
inline bool ends_in_stream(Role role) { return info(role).into_stream; }
bool is_bias(Role role);
bool is_norm(Role role);
/// True for a role of two extents.
inline bool is_matrix(Role role) { return !is_bias(role) && !is_norm(role); }

/// Name of Llama's checkpoints: {q, 3} -> "model.layers.3.self_attn.q_proj.weight".
std::string canonical_name(MatrixId id);

/// Row-major, outputs first: q [Hq*d, D], down [D, F], embedding and head [V, D], norms and biases
/// one-dimensional: q_norm and k_norm [d], one for all heads. q_row_norm is [Hq*d], k_row_norm
/// [Hkv*d].
io::Shape shape_of(Role role, const ModelConfig& config);

/// True if a model of this configuration has it: biases and norms of heads by flag, head unless
/// tied.
inline bool present(Role role, const ModelConfig& config) { return info(role).present(config); }

/// The roles of the model outside its layers, and those of each layer, in table order.
std::vector<Role> outer_roles(const ModelConfig& config);
std::vector<Role> layer_roles(const ModelConfig& config);
/// Lists the matrices outside the layers, then those of each layer.
std::vector<MatrixId> all_matrices(const ModelConfig& config);

/// The matrices that a product stacks, in order.
std::span<const Role> members(Role stack);
/// The bias of a matrix.
Role bias_of(Role matrix);
/// True if the product of a stack adds biases.
bool has_bias(Role stack, const ModelConfig& config);
/// First row in the stack.
int64_t first_row(Role role, const ModelConfig& config);

/// Place of a norm's numbers where all norms follow each other: by layer in table order, then
/// out_norm; and how many numbers they are.
int64_t norm_offset(MatrixId id, const ModelConfig& config);
int64_t norm_elements(const ModelConfig& config);

/// Features of a unit, and units of a matrix: heads, channels.
int unit_features(Role role, const ModelConfig& config);
int n_units(Role role, const ModelConfig& config);
/// "heads", "KV heads", "channels".
const char* unit_name(Role role);
/// "q", "down": in recipes and reports.
inline const char* word_of(Role role) { return info(role).word; }

/// Number of parameters, a tied head counted once.
int64_t n_params(const ModelConfig& config);

}  // namespace tandem::model
