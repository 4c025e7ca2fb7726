#include "model/layer_stream.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace tandem::model {
namespace {

std::string block_name(int layer) { return "weights/layers." + std::to_string(layer) + ".pinned"; }
std::string buffer_name(int i) { return "ring/buffer." + std::to_string(i); }

}  // namespace

void LayerStream::plan(std::span<const int> layers, size_t block_bytes, Device device,
                       MemoryPlan& plan) {
  for (const int layer : layers) plan.add(block_name(layer), block_bytes);
  for (int i = 0; i < ring_buffers(static_cast<int>(layers.size())); ++i)
    plan.add(buffer_name(i), block_bytes, device);
}

LayerStream::LayerStream(std::vector<int> layers, size_t block_bytes, Device device, Arena& arena)
    : layers_(std::move(layers)),
      block_bytes_(block_bytes),
      arena_(arena),
      ring_(static_cast<int>(layers_.size())),
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

bool LayerStream::holds(int layer) const { return std::ranges::binary_search(layers_, layer); }

void LayerStream::load(const LayerNorms& norms,
                       const std::function<LayerWeights(std::byte* memory)>& fill) {
  const size_t i = blocks_.size();
  TANDEM_CHECK(i < layers_.size(), "{} layers loaded already", i);
  auto* host = static_cast<std::byte*>(arena_.take(block_name(layers_[i])));
  const Block& block = blocks_.emplace_back(host, block_bytes_, norms);
  Buffer& buffer = buffers_[i % buffers_.size()];
  buffer.copied.wait();  // to the block that it was last loaded for
  buffer.weights = fill(buffer.data);
  copies_.copy_out(block.host, buffer.data, block_bytes_);
  buffer.copied.record(copies_);
}

void LayerStream::start() {
  TANDEM_CHECK(blocks_.size() == layers_.size(), "{} of {} layers loaded", blocks_.size(),
               layers_.size());
  ring_.restart();
  for (int i = 0; i < ring_.n_buffers(); ++i) copy(i, buffers_[static_cast<size_t>(i)]);
}

void LayerStream::copy(int block, Buffer& to) {
  copies_.copy_in(to.data, blocks_[static_cast<size_t>(block)].host, block_bytes_);
  to.copied.record(copies_);
}

void LayerStream::begin_forward(cuda::Queue& compute) {
  if (ring_.at_first_layer()) return;
  // The last forward was interrupted: what the buffers hold is of no use now.
  Buffer& in_use = buffers_[static_cast<size_t>(ring_.buffer())];
  in_use.used.record(compute);
  copies_.follow(in_use.used);
  start();
}

const LayerWeights& LayerStream::acquire(cuda::Queue& compute) {
  Buffer& buffer = buffers_[static_cast<size_t>(ring_.buffer())];
  const Block& block = blocks_[static_cast<size_t>(ring_.layer())];
  buffer.weights.norms = block.norms;
  compute.follow(buffer.copied);
  return buffer.weights;
}

void LayerStream::release(cuda::Queue& compute) {
  Buffer& buffer = buffers_[static_cast<size_t>(ring_.buffer())];
  buffer.used.record(compute);
  copies_.follow(buffer.used);
  copy(ring_.successor(), buffer);
  ring_.advance();
}

void LayerStream::settle(cuda::Queue& compute) {
  for (const Buffer& buffer : buffers_) compute.follow(buffer.copied);
}

}  // namespace tandem::model
