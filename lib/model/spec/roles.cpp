#include "model/spec/roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tandem::model {
namespace {

// In the order of the enumeration, so that the value is the index.
constexpr auto kRoles = [] {
  using R = Role;
  using E = Extent;
  using P = LayerPart;
  using C = Cut;
  using U = Unit;
  using Config = const ModelConfig&;
  constexpr bool yes = true, no = false;
  constexpr auto always = [](Config) { return true; };
  constexpr auto untied = [](Config c) { return !c.head.tied; };
  constexpr auto qkv_bias = [](Config c) { return c.qkv_bias(); };
  constexpr auto o_bias = [](Config c) { return c.o_bias(); };
  constexpr auto mlp_bias = [](Config c) { return c.mlp_bias(); };
  constexpr auto pre = [](Config c) { return c.norms().pre; };
  constexpr auto post = [](Config c) { return c.norms().post; };
  constexpr auto by_head = [](Config c) { return c.qk_norm() == QkNorm::head; };
  constexpr auto by_row = [](Config c) { return c.qk_norm() == QkNorm::row; };
  // clang-format off
  return std::array<RoleInfo, static_cast<size_t>(Role::rest_down) + 1>{{
    {R::embedding,    "",     "embedding",    "model.embed_tokens.weight",       E::vocabulary, E::dim, R::embedding, P::outside,   no,  C::rows,       U::vocabulary, 0,  always},
    {R::attn_pre,     "",     "",             "input_layernorm.weight",          E::dim,        E::one, R::attn_pre,  P::attention, no,  C::none,       U::none,       1,  pre},
    {R::q,            "q",    "",             "self_attn.q_proj.weight",         E::q,          E::dim, R::qkv,       P::attention, no,  C::rows,       U::query_head, 2,  always},
    {R::k,            "k",    "",             "self_attn.k_proj.weight",         E::kv,         E::dim, R::qkv,       P::attention, no,  C::rows,       U::kv_head,    3,  always},
    {R::v,            "v",    "",             "self_attn.v_proj.weight",         E::kv,         E::dim, R::qkv,       P::attention, no,  C::rows,       U::kv_head,    4,  always},
    {R::o,            "o",    "wo",           "self_attn.o_proj.weight",         E::dim,        E::q,   R::o,         P::attention, yes, C::columns,    U::query_head, 5,  always},
    {R::q_bias,       "",     "",             "self_attn.q_proj.bias",           E::q,          E::one, R::qkv,       P::attention, no,  C::rows,       U::query_head, 6,  qkv_bias},
    {R::k_bias,       "",     "",             "self_attn.k_proj.bias",           E::kv,         E::one, R::qkv,       P::attention, no,  C::rows,       U::kv_head,    7,  qkv_bias},
    {R::v_bias,       "",     "",             "self_attn.v_proj.bias",           E::kv,         E::one, R::qkv,       P::attention, no,  C::rows,       U::kv_head,    8,  qkv_bias},
    {R::o_bias,       "",     "",             "self_attn.o_proj.bias",           E::dim,        E::one, R::o,         P::attention, yes, C::first_rank, U::none,       9,  o_bias},
    {R::ffn_pre,      "",     "",             "post_attention_layernorm.weight", E::dim,        E::one, R::ffn_pre,   P::ffn,       no,  C::none,       U::none,       10, pre},
    {R::gate,         "gate", "",             "mlp.gate_proj.weight",            E::ffn,        E::dim, R::gate_up,   P::ffn,       no,  C::rows,       U::neuron,     11, always},
    {R::up,           "up",   "",             "mlp.up_proj.weight",              E::ffn,        E::dim, R::gate_up,   P::ffn,       no,  C::rows,       U::neuron,     12, always},
    {R::down,         "down", "w_down",       "mlp.down_proj.weight",            E::dim,        E::ffn, R::down,      P::ffn,       yes, C::columns,    U::neuron,     13, always},
    {R::gate_bias,    "",     "",             "mlp.gate_proj.bias",              E::ffn,        E::one, R::gate_up,   P::ffn,       no,  C::rows,       U::neuron,     14, mlp_bias},
    {R::up_bias,      "",     "",             "mlp.up_proj.bias",                E::ffn,        E::one, R::gate_up,   P::ffn,       no,  C::rows,       U::neuron,     15, mlp_bias},
    {R::down_bias,    "",     "",             "mlp.down_proj.bias",              E::dim,        E::one, R::down,      P::ffn,       yes, C::first_rank, U::none,       16, mlp_bias},
    {R::out_norm,     "",     "",             "model.norm.weight",               E::dim,        E::one, R::out_norm,  P::outside,   no,  C::none,       U::none,       17, always},
    {R::head,         "",     "lm_head",      "lm_head.weight",                  E::vocabulary, E::dim, R::head,      P::outside,   no,  C::rows,       U::vocabulary, 18, untied},
    {R::q_norm,       "",     "",             "self_attn.q_norm.weight",         E::head,       E::one, R::q_norm,    P::attention, no,  C::none,       U::none,       19, by_head},
    {R::k_norm,       "",     "",             "self_attn.k_norm.weight",         E::head,       E::one, R::k_norm,    P::attention, no,  C::none,       U::none,       20, by_head},
    {R::q_row_norm,   "",     "",             "self_attn.q_norm.weight",         E::q,          E::one, R::q_row_norm, P::attention, no, C::rows,       U::query_head, 19, by_row},
    {R::k_row_norm,   "",     "",             "self_attn.k_norm.weight",         E::kv,         E::one, R::k_row_norm, P::attention, no, C::rows,       U::kv_head,    20, by_row},
    {R::attn_post,    "",     "",             "post_attention_layernorm.weight", E::dim,        E::one, R::attn_post, P::attention, no,  C::none,       U::none,       21, post},
    {R::ffn_post,     "",     "",             "post_feedforward_layernorm.weight", E::dim,      E::one, R::ffn_post,  P::ffn,       no,  C::none,       U::none,       22, post},
    {R::qkv,          "",     "qkv",          "",                                E::stack,      E::dim, R::qkv,       P::attention, no,  C::none,       U::none,       -1, always},
    {R::gate_up,      "",     "gate_up",      "",                                E::stack,      E::dim, R::gate_up,   P::ffn,       no,  C::none,       U::none,       -1, always},
    {R::rest_gate_up, "",     "rest_gate_up", "",                                E::stack,      E::dim, R::gate_up,   P::rest,      no,  C::none,       U::none,       -1, always},
    {R::rest_down,    "",     "rest_down",    "",                                E::dim,        E::ffn, R::down,      P::rest,      yes, C::none,       U::none,       -1, always},
  }};
  // clang-format on
}();

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kRoles.size(); ++i)
    if (static_cast<size_t>(kRoles[i].role) != i) return false;
  return true;
}
static_assert(in_enum_order());

constexpr auto kAllRoles = [] {
  std::array<Role, kRoles.size()> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = kRoles[i].role;
  return all;
}();

/// True for the matrices of a stack, or for its biases; either follow each other in the table.
bool stacks_in(const RoleInfo& r, Role stack, bool biases) {
  return r.stack == stack && !r.tensor.empty() && is_bias(r.role) == biases;
}

int64_t extent_of(const RoleInfo& r, Extent extent, const ModelConfig& c) {
  using enum Extent;
  switch (extent) {
    case one:
      return 1;
    case dim:
      return c.dim;
    case q:
      return c.q_dim();
    case kv:
      return c.kv_dim();
    case ffn:
      return c.ffn_dim;
    case head:
      return c.head_dim;
    case vocabulary:
      return c.head_rows();
    case stack:
      break;
  }
  int64_t sum = 0;
  for (const Role member : members(r.role)) sum += shape_of(member, c)[0];
  return sum;
}

std::vector<Role> roles_of(const ModelConfig& config, bool of_layers) {
  std::vector<Role> selected;
  for (const RoleInfo& r : kRoles)
    if (!r.tensor.empty() && in_layers(r.role) == of_layers && r.present(config))
      selected.push_back(r.role);
  return selected;
}

}  // namespace

std::span<const Role> all_roles() { return kAllRoles; }

const RoleInfo& info(Role role) { return kRoles[static_cast<size_t>(role)]; }

bool is_bias(Role role) { return info(role).tensor.ends_with(".bias"); }

bool is_norm(Role role) { return info(role).in == Extent::one && !is_bias(role); }

std::string canonical_name(MatrixId id) {
  if (!in_layers(id.role)) return std::string(info(id.role).tensor);
  return fmt::format("model.layers.{}.{}", id.layer, info(id.role).tensor);
}

io::Shape shape_of(Role role, const ModelConfig& config) {
  const RoleInfo& r = info(role);
  const int64_t out = extent_of(r, r.out, config);
  if (r.in == Extent::one) return {out};
  return {out, extent_of(r, r.in, config)};
}

std::vector<Role> outer_roles(const ModelConfig& config) { return roles_of(config, false); }

std::vector<Role> layer_roles(const ModelConfig& config) { return roles_of(config, true); }

std::vector<MatrixId> all_matrices(const ModelConfig& config) {
  std::vector<MatrixId> all;
  for (const Role role : outer_roles(config)) all.push_back({role});
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role role : layer_roles(config)) all.push_back({role, layer});
  return all;
}

std::span<const Role> members(Role of) {
  const auto stacked = [&](const RoleInfo& r) { return stacks_in(r, info(of).stack, false); };
  const auto first = std::ranges::find_if(kRoles, stacked);
  const auto end = std::find_if_not(first, kRoles.end(), stacked);
  return std::span(kAllRoles).subspan(static_cast<size_t>(first - kRoles.begin()),
                                      static_cast<size_t>(end - first));
}

Role bias_of(Role matrix) {
  const std::string_view tensor = info(matrix).tensor;
  const std::string_view module = tensor.substr(0, tensor.rfind('.'));
  const auto bias = std::ranges::find_if(
      kRoles, [&](const RoleInfo& r) { return is_bias(r.role) && r.tensor.starts_with(module); });
  return bias == kRoles.end() ? matrix : bias->role;
}

bool has_bias(Role stack, const ModelConfig& config) {
  const Role bias = bias_of(members(stack).front());
  return is_bias(bias) && present(bias, config);
}

int64_t first_row(Role role, const ModelConfig& config) {
  int64_t first = 0;
  for (const RoleInfo& r : kRoles)
    if (r.role < role && stacks_in(r, info(role).stack, is_bias(role)))
      first += shape_of(r.role, config)[0];
  return first;
}

int64_t norm_offset(MatrixId id, const ModelConfig& config) {
  int64_t before = 0, each = 0;
  for (const Role r : layer_roles(config)) {
    if (!is_norm(r)) continue;
    if (r < id.role) before += shape_of(r, config)[0];
    each += shape_of(r, config)[0];
  }
  return id.role == Role::out_norm ? config.n_layers * each : id.layer * each + before;
}

int64_t norm_elements(const ModelConfig& config) {
  return norm_offset({Role::out_norm}, config) + shape_of(Role::out_norm, config)[0];
}

int unit_features(Role role, const ModelConfig& config) {
  const Unit unit = info(role).unit;
  return unit == Unit::query_head || unit == Unit::kv_head ? config.head_dim : 1;
}

int n_units(Role role, const ModelConfig& config) {
  const io::Shape shape = shape_of(role, config);
  return static_cast<int>(shape[ends_in_stream(role) ? 1 : 0]) / unit_features(role, config);
}

const char* unit_name(Role role) {
  constexpr std::array kNames = {"", "heads", "KV heads", "channels", "rows"};
  return kNames[static_cast<size_t>(info(role).unit)];
}

int64_t n_params(const ModelConfig& config) {
  const auto count = [&](const std::vector<Role>& roles) {
    int64_t sum = 0;
    for (const Role role : roles) {
      int64_t n = 1;
      for (const int64_t extent : shape_of(role, config)) n *= extent;
      sum += n;
    }
    return sum;
  };
  return count(outer_roles(config)) + config.n_layers * count(layer_roles(config));
}

}  // namespace tandem::model
