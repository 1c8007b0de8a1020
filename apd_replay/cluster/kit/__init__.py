"""Real SGLang on GPU hosts without network: what is carried there, built where packages can be had (docs/gpu.md).

    recipe.yaml          which packages, what is left out of each, which kernels are compiled beforehand
    build.py             the steps, in order: wheels, pruning, compiling, this package, packing
    wheels.py            download and lay out
    native.py            shared objects: symbols, unneeded ones, the system libraries that must come along
    device_code.py       blank the device code that no run loads
    compile_kernels.py   run by another interpreter
    own.py               this package as a distribution folder, so that its entry points are found
    pack.py              archives cut into parts of a chosen size, with checksums
    install.py           verify and unpack; standard library only, travels in the kit
"""
