// The Python module: memory, launches, the pool. It checks all arguments; kernels trust their launch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "check.hpp"
#include "paths.hpp"
#include "pool.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nb = nanobind;

namespace {

using namespace bitnet;

// Zero-filled memory, or a Python buffer that stays exported as long as something refers to it.
class Storage {
 public:
  explicit Storage(size_t size) : size_(size), owned_(static_cast<uint8_t*>(std::calloc(size + 63, 1))) {
    if (owned_ == nullptr) throw std::bad_alloc();
    data_ = owned_ + (64 - reinterpret_cast<uintptr_t>(owned_) % 64) % 64;
  }

  explicit Storage(nb::handle exporter) {
    if (PyObject_GetBuffer(exporter.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    data_ = static_cast<uint8_t*>(buffer_.buf);
    size_ = size_t(buffer_.len);
#if defined(__linux__)
    // A mapped file: start reading it ahead. Best effort, on whole pages.
    const uintptr_t page = 4096, first = reinterpret_cast<uintptr_t>(data_) / page * page;
    madvise(reinterpret_cast<void*>(first), reinterpret_cast<uintptr_t>(data_) + size_ - first, MADV_WILLNEED);
#endif
  }

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    std::free(owned_);
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }

  Bytes part(size_t offset, size_t size) const {
    if (offset > size_ || size > size_ - offset) throw LaunchFault("a view leaves its buffer");
    return {data_ + offset, size};
  }
  bool writable() const { return owned_ != nullptr; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint8_t* owned_ = nullptr;
  Py_buffer buffer_{};
};

// The memory of a device's buffer. Launches share it, so that a freed buffer lives until its recordings close.
struct Memory {
  std::shared_ptr<Storage> storage;

  Bytes part(size_t offset, size_t size) const {
    if (!storage) throw LaunchFault("the buffer was freed");
    return storage->part(offset, size);
  }
  Bytes target(size_t offset, size_t size) const {
    const Bytes bytes = part(offset, size);
    if (!storage->writable()) throw nb::value_error("a wrapped buffer is read-only");
    return bytes;
  }
};

// A buffer object of exactly `size` bytes, exported for the lifetime of this object.
class HostBytes {
 public:
  HostBytes(nb::handle exporter, bool writable, size_t size) {
    if (PyObject_GetBuffer(exporter.ptr(), &buffer_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) throw nb::python_error();
    if (size_t(buffer_.len) != size) {
      const std::string text = "a transfer of " + std::to_string(buffer_.len) + " bytes meets a view of " + std::to_string(size);
      PyBuffer_Release(&buffer_);
      throw nb::value_error(text.c_str());
    }
  }
  ~HostBytes() { PyBuffer_Release(&buffer_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }

 private:
  Py_buffer buffer_;
};

struct Compiled {
  KernelId kernel;
  Constants constants;
  const Path* path;
};

uint32_t constant(const nb::dict& constants, const char* name) {
  if (!constants.contains(name)) return 0;
  uint32_t value = 0;
  if (!nb::try_cast(constants[name], value)) throw Unsupported(std::string("constant ") + name + " is no 32-bit number");
  return value;
}

Compiled compile(const std::string& kernel, const nb::dict& constants, const std::string& path) {
  Compiled compiled{kernel_id(kernel), {}, &path_named(path)};
  Constants& c = compiled.constants;
  c.dtype = constant(constants, "DTYPE");
  c.norm = constant(constants, "NORM");
  c.add = constant(constants, "ADD");
  c.block = constant(constants, "BLOCK");
  c.ablock = constant(constants, "ABLOCK");
  c.kv = constant(constants, "KV");
  c.interleaved = constant(constants, "INTERLEAVED");
  c.qknorm = constant(constants, "QKNORM");
  c.act = constant(constants, "ACT");
  c.mask = constant(constants, "MASK");
  c.inverse = constant(constants, "INVERSE");
  c.tile_n = constant(constants, "TILE_N");
  c.tile_t = constant(constants, "TILE_T");
  check_constants(compiled.kernel, c);
  return compiled;
}

struct Bound {
  Launch launch;
  const Path* path;
  std::vector<std::shared_ptr<Storage>> storages;
};

struct Launches {
  std::vector<Launch> launches;
  std::vector<std::shared_ptr<Storage>> storages;
};

Bound make_launch(const Compiled& compiled, const std::vector<uint32_t>& grid, const nb::list& views, nb::bytes params) {
  Bound bound{};
  bound.path = compiled.path;
  Launch& launch = bound.launch;
  launch.kernel = compiled.kernel;
  launch.constants = compiled.constants;
  if (grid.size() != 3 || views.size() > MAX_VIEWS || params.size() > sizeof launch.params)
    throw LaunchFault("a launch has 3 grid sizes, at most 8 views and at most 32 bytes of parameters");
  for (size_t i = 0; i < 3; ++i) launch.grid[i] = grid[i];
  std::memcpy(launch.params, params.c_str(), params.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const auto view = nb::cast<nb::tuple>(views[i]);
    const auto* memory = nb::cast<const Memory*>(view[0]);
    if (memory == nullptr) throw LaunchFault("a view without memory");
    launch.views[i] = memory->part(nb::cast<size_t>(view[1]), nb::cast<size_t>(view[2]));
    bound.storages.push_back(memory->storage);
  }
  prepare(launch, views.size(), *compiled.path);
  return bound;
}

void run(Pool& pool, const Launch* launches, size_t count, size_t times = 1) {
  size_t scratch = 0;
  for (size_t i = 0; i < count; ++i) scratch = std::max(scratch, launches[i].scratch);
  const nb::gil_scoped_release release;
  pool.reserve(scratch);
  for (size_t i = 0; i < times; ++i) pool.run(launches, count);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of the cpu backend";
  nb::exception<LaunchFault>(m, "LaunchFault", PyExc_ValueError);
  nb::exception<Unsupported>(m, "Unsupported", PyExc_NotImplementedError);

  nb::class_<Memory>(m, "Memory")
      .def("release", [](Memory& self) { self.storage.reset(); })
      .def("upload",
           [](Memory& self, size_t offset, size_t size, nb::handle source) {
             const Bytes to = self.target(offset, size);
             const HostBytes from(source, false, size);
             const nb::gil_scoped_release release;
             std::memmove(to.data, from.data(), size);
           })
      .def("download",
           [](const Memory& self, size_t offset, size_t size, nb::handle target) {
             const Bytes from = self.part(offset, size);
             const HostBytes to(target, true, size);
             const nb::gil_scoped_release release;
             std::memmove(to.data(), from.data, size);
           })
      .def("copy_from", [](Memory& self, size_t offset, const Memory& source, size_t source_offset, size_t size) {
        const Bytes to = self.target(offset, size), from = source.part(source_offset, size);
        const nb::gil_scoped_release release;
        std::memmove(to.data, from.data, size);
      });
  m.def("allocate", [](size_t size) { return Memory{std::make_shared<Storage>(size)}; });
  m.def("wrap", [](nb::handle exporter) { return Memory{std::make_shared<Storage>(exporter)}; });

  nb::class_<Compiled>(m, "Compiled");
  m.def("compile", &compile);
  nb::class_<Bound>(m, "Launch");
  m.def("make_launch", &make_launch);

  nb::class_<Launches>(m, "Launches")
      .def(nb::init<>())
      .def("append",
           [](Launches& self, const Bound& bound) {
             self.launches.push_back(bound.launch);
             if (const size_t n = self.launches.size(); n > 1)
               self.launches[n - 1].beside = may_run_beside(self.launches[n - 2], bound.launch);
             self.storages.insert(self.storages.end(), bound.storages.begin(), bound.storages.end());
           })
      .def("clear", [](Launches& self) { self = {}; });

  nb::class_<Pool>(m, "Pool")
      .def(nb::init<uint32_t>())
      .def_prop_ro("threads", &Pool::threads)
      .def("run", [](Pool& self, const Bound& bound) { run(self, &bound.launch, 1); })
      .def("replay", [](Pool& self, const Launches& all, size_t times) {
        run(self, all.launches.data(), all.launches.size(), times);
      });

  m.def("paths", [] {
    std::vector<std::string> names;
    for (const Path* path : usable_paths()) names.emplace_back(path->name);
    return names;
  });
  m.def("panel_rows", [](const std::string& path) { return path_named(path).panel_rows; });
}
