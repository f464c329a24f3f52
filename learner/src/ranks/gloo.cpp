// torch's process group over Gloo, behind a few functions of C.
//
// Every function that can fail returns a message that the caller frees with `tandem_ranks_free_message`, or null.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <stdexcept>
#include <thread>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace {

using std::chrono::milliseconds;

// The stand-ins for Gloo's headers are right only for the layout that they were tried with.
static_assert(sizeof(c10d::ProcessGroupGloo) == 488, "another libtorch: try src/ranks/stubs with it before this is changed");

// How long the ranks that found one missing wait for signs of the others. One that computes gives none meanwhile, so that it
// may be named as well.
constexpr milliseconds ROLL_CALL{5000};

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  int rank;
  int count;
};

// The ranks that give no sign of life, after an operation of all has failed.
std::string missing(Group& group) {
  std::string names;
  try {
    auto key = [](int rank) { return "roll_call/" + std::to_string(rank); };
    group.store->set(key(group.rank), std::vector<uint8_t>{1});
    const auto end = std::chrono::steady_clock::now() + ROLL_CALL;
    bool all = false;
    while (!all && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(50));
      std::string absent;
      all = true;
      for (int rank = 0; rank < group.count; rank++) {
        if (!group.store->check({key(rank)})) {
          all = false;
          absent += (absent.empty() ? "" : ", ") + std::to_string(rank);
        }
      }
      names = absent;
    }
  } catch (const std::exception&) {
    // Where the first rank keeps the store, it is gone with it.
    if (names.empty() && group.rank != 0) names = "0";
  }
  return names;
}

template <typename Deed>
char* guarded(Deed deed) {
  try {
    deed();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an exception without a text");
  }
}

void all_reduce(Group& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  try {
    group.group->allreduce(tensors, c10d::AllreduceOptions())->wait();
  } catch (const std::exception& error) {
    const std::string names = missing(group);
    if (names.empty()) throw;
    throw std::runtime_error("no sign of life within " + std::to_string(ROLL_CALL.count() / 1000) + " s of rank " + names + " (" + error.what() + ")");
  }
}

}  // namespace

extern "C" {

void tandem_ranks_free_message(char* message) { free(message); }

// `path`: a file that all ranks see and that does not exist before; null: rank 0 listens on `host`:`port`. `address`: of
// this machine, to be reached at; null: what its name resolves to.
char* tandem_ranks_join(const char* path, const char* host, uint16_t port, const char* address, int rank, int count,
                        int64_t timeout_ms, Group** joined) {
  return guarded([&] {
    const milliseconds timeout(timeout_ms);
    c10::intrusive_ptr<c10d::Store> store;
    if (path != nullptr) {
      store = c10::make_intrusive<c10d::FileStore>(path, count);
      store->setTimeout(timeout);
    } else {
      c10d::TCPStoreOptions options;
      options.port = port;
      options.isServer = rank == 0;
      options.numWorkers = count;
      options.timeout = timeout;
      store = c10::make_intrusive<c10d::TCPStore>(host, options);
    }
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(address != nullptr ? c10d::ProcessGroupGloo::createDeviceForHostname(address)
                                                  : c10d::ProcessGroupGloo::createDefaultDevice());
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, count, options);
    *joined = new Group{store, group, rank, count};
  });
}

char* tandem_ranks_sum(Group* group, double* values, int64_t count) {
  return guarded([&] { all_reduce(*group, at::from_blob(values, {count}, at::kDouble)); });
}

// `tensor` is a `tch::Tensor`'s.
char* tandem_ranks_sum_tensor(Group* group, void* tensor) {
  return guarded([&] { all_reduce(*group, *static_cast<at::Tensor*>(tensor)); });
}

void tandem_ranks_leave(Group* group) { delete group; }
}
