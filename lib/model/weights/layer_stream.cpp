#include "model/weights/layer_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace tandem::model {
namespace {

constexpr std::array kPartNames = {"attention", "ffn", "rest"};

std::string buffer_name(int i) { return "ring/buffer." + std::to_string(i); }

size_t largest(std::span<const LayerStream::Part> parts) {
  return std::ranges::max(parts, {}, &LayerStream::Part::bytes).bytes;
}

bool is_read(ReadKind kind, LayerPart part) {
  return kind == ReadKind::all || part != LayerPart::rest;
}

std::vector<int> blocks_of(std::span<const LayerStream::Part> parts, ReadKind kind) {
  std::vector<int> blocks;
  for (size_t i = 0; i < parts.size(); ++i)
    if (is_read(kind, parts[i].part)) blocks.push_back(static_cast<int>(i));
  return blocks;
}

LayerWeights moved(const LayerWeights& w, ptrdiff_t by) {
  LayerWeights to;
  for (const Role role : kPackedRoles)
    if (!w[role].empty()) to[role] = w[role].moved(by);
  return to;
}

}  // namespace

std::string LayerStream::Part::name() const {
  return fmt::format("weights/layers.{}.{} pinned", layer, kPartNames[static_cast<size_t>(part)]);
}

void LayerStream::plan(std::span<const Part> parts, Device device, MemoryPlan& plan) {
  for (const Part& p : parts) plan.add(p.name(), p.bytes);
  for (int i = 0; i < ring_buffers(static_cast<int>(parts.size())); ++i)
    plan.add(buffer_name(i), largest(parts), device);
}

LayerStream::LayerStream(std::vector<Part> parts, Device device, Arena& arena)
    : parts_(std::move(parts)),
      arena_(arena),
      ring_(blocks_of(parts_, ReadKind::all), blocks_of(parts_, ReadKind::set)),
      copies_(device.index) {
  for (int i = 0; i < ring_.n_buffers(); ++i)
    buffers_.emplace_back(static_cast<std::byte*>(arena.take(buffer_name(i))));
}

LayerStream::~LayerStream() {
  try {
    copies_.wait();  // they run ahead of the last forward
  } catch (const Error&) {
    // The next wait for the copied weights reports it.
  }
}

int LayerStream::find(int layer, LayerPart part) const {
  const auto at = std::ranges::find_if(
      parts_, [&](const Part& p) { return p.layer == layer && p.part == part; });
  return at == parts_.end() ? -1 : static_cast<int>(at - parts_.begin());
}

void LayerStream::load(const std::function<LayerWeights(std::byte* memory)>& fill) {
  const size_t i = blocks_.size();
  TANDEM_CHECK(i < parts_.size(), "all {} parts are loaded already", i);
  const Part& part = parts_[i];
  auto* host = static_cast<std::byte*>(arena_.take(part.name()));
  Block& block = blocks_.emplace_back(host, part.bytes);
  Buffer& buffer = buffers_[i % buffers_.size()];
  buffer.copied.wait();  // to the block that it was last loaded for
  const LayerWeights weights = fill(buffer.data);
  for (const Buffer& b : buffers_) block.in_buffers.push_back(moved(weights, b.data - buffer.data));
  copies_.copy_out(block.host, buffer.data, part.bytes);
  buffer.copied.record(copies_);
}

void LayerStream::start() {
  TANDEM_CHECK(blocks_.size() == parts_.size(), "only {} of {} parts are loaded", blocks_.size(),
               parts_.size());
  ring_.restart(ReadKind::all);
  fill_buffers();
}

void LayerStream::fill_buffers() {
  const std::vector<int> held = ring_.held();
  for (size_t i = 0; i < held.size(); ++i) copy(held[i], buffers_[i]);
}

void LayerStream::copy(int block, Buffer& to) {
  const auto i = static_cast<size_t>(block);
  copies_.copy_in(to.data, blocks_[i].host, parts_[i].bytes);
  to.copied.record(copies_);
}

void LayerStream::begin_forward(cuda::Queue& compute, ReadKind kind) {
  if (ring_.begin(kind)) return;
  // The last forward was broken off, or another kind was expected: what the buffers hold, of which
  // one may be in use, is of no use now.
  buffers_.front().used.record(compute);
  copies_.follow(buffers_.front().used);
  fill_buffers();
}

const LayerWeights& LayerStream::acquire(cuda::Queue& compute, int layer, LayerPart part) {
  const Part& next = parts_[static_cast<size_t>(ring_.block())];
  TANDEM_CHECK(next.layer == layer && next.part == part, "expected {} next", next.name());
  const auto i = static_cast<size_t>(ring_.buffer());
  compute.follow(buffers_[i].copied);
  return blocks_[static_cast<size_t>(ring_.block())].in_buffers[i];
}

const LayerWeights& LayerStream::in_buffer(int i, LayerPart part) const {
  static const LayerWeights none;
  const auto at = std::ranges::find(parts_, part, &Part::part);
  if (at == parts_.end()) return none;
  return blocks_[static_cast<size_t>(at - parts_.begin())].in_buffers[static_cast<size_t>(i)];
}

void LayerStream::release(cuda::Queue& compute) {
  Buffer& buffer = buffers_[static_cast<size_t>(ring_.buffer())];
  buffer.used.record(compute);
  copies_.follow(buffer.used);
  copy(ring_.advance(), buffer);
}

LayerWeights LayerStream::on_host(int layer, LayerPart part) const {
  const int block = find(layer, part);
  TANDEM_CHECK(block >= 0, "layer {} is not in host memory", layer);
  const Block& found = blocks_[static_cast<size_t>(block)];
  return moved(found.in_buffers.front(), found.host - buffers_.front().data);
}

void LayerStream::change(cuda::Queue& compute, const std::function<void()>& work) {
  settle(compute);
  work();
  buffers_.front().used.record(compute);
  copies_.follow(buffers_.front().used);
  ring_.restart(ReadKind::all);
  fill_buffers();
}

void LayerStream::settle(cuda::Queue& compute) {
  for (const Buffer& buffer : buffers_) compute.follow(buffer.copied);
}

size_t LayerStream::bytes(ReadKind kind) const {
  size_t sum = 0;
  for (const Part& p : parts_)
    if (is_read(kind, p.part)) sum += p.bytes;
  return sum;
}

}  // namespace tandem::model
