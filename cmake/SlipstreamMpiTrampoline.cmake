# libslipstream_mpi.so: what MPItrampoline loads (MPITRAMPOLINE_LIB). It links nothing of MPI or of Python, and of ours
# the kernels: it gets the engine's functions from slipstream._core at run time.

file(GLOB mpi_trampoline CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/mpi_trampoline/*.cpp")
set(SLIPSTREAM_MPI_EXPORTS "${CMAKE_CURRENT_SOURCE_DIR}/mpi_trampoline/exports.map")

add_library(slipstream_mpi MODULE ${mpi_trampoline})
target_include_directories(slipstream_mpi PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_compile_definitions(slipstream_mpi PRIVATE "SLIPSTREAM_VERSION=\"${PROJECT_VERSION}\"")
target_link_libraries(slipstream_mpi PRIVATE slipstream_options slipstream_kernels slipstream_base)
slipstream_precompiled(slipstream_mpi slipstream_layer_headers)
target_link_options(slipstream_mpi PRIVATE "-Wl,--version-script=${SLIPSTREAM_MPI_EXPORTS}")
set_target_properties(slipstream_mpi PROPERTIES LINK_DEPENDS "${SLIPSTREAM_MPI_EXPORTS}")
# As for _core: no libstdc++ of the machine is needed, and the unwinder is the system's.
if(SLIPSTREAM_UNWINDER)
  target_link_libraries(slipstream_mpi PRIVATE "${SLIPSTREAM_UNWINDER}")
else()
  target_link_options(slipstream_mpi PRIVATE -static-libstdc++ -shared-libgcc)
endif()
install(TARGETS slipstream_mpi LIBRARY DESTINATION slipstream)
