// Stands in for Gloo's own headers, which libtorch is built with and does not ship. The headers of torch's process groups
// name a few of its types behind pointers; no object of them is made or looked into here.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
