"""The whitened matched filter: one statistic for rounds that are correlated in any way.

A released vector of round t has the score ``s_t = ⟨c, Y_t⟩`` with a random unit direction c. For a
canary that took no part the scores of all rounds are jointly ``N(0, G/d)``, ``G = Y·Yᵀ``. A canary
that took part adds a known ``f_t``. The optimal score is ``fᵀG⁻¹s / √(fᵀG⁻¹f/d)``: N(0, 1) without
the canary, and ``√(d·fᵀG⁻¹f)`` on average with it, which for a matrix mechanism with noise alone is
``‖C·1_S‖ / z``. The package estimates G from the sketches of the rounds, which tell as much as the
scores of M random directions that take no part. What that costs is known (Reed, Mallett and Brennan
1974), and `Precision` has it.

Here the sketches are drawn, in the limit of many dimensions, and the package's `Whitener` makes L
of them. Given L a canary's score is normal, and its mean and variance are computed, not drawn. For
each mechanism and schedule of 4 participations, in the mean over canaries:

- "score": the filtered score over ‖C·1_S‖/z. Its null is N(0, 1), so this is what the attack has;
- "μ": the same in the unit of `Scores.unit`, from which ε is computed;
- "null": the deviation of canaries that took no part;
- "apart": score and null of the filter that takes rounds as independent.

"±" is the standard error over seeds: 16, 16, 8, 4 and 2 of them, the more rounds the fewer. Then
the time of 2,048 rounds and 2,000 canaries in `RunAuditor`, also with ``--time`` alone.

    python simulations/studies/whitened_filter.py    # fifteen minutes on one core

Correlations are followed 800 rounds back, and over all rounds for "tree", "toeplitz" and "blt",
whose noise is correlated over all of them: the simulator does so, too. With ``--window 800`` these
have a μ of 0.93 to 0.99 and a null of 0.98 to 1.01 in 2,048 rounds.

Expected (the last line on two cores of an AMD EPYC)::

    rounds mechanism       schedule     | score         μ             null          | apart
        16 independent     once         | 0.9993±0.0003 0.9997±0.0003 0.9997±0.0003 | 1.000 1.000
        16 independent     epochs       | 0.9996±0.0005 1.0001±0.0005 1.0001±0.0005 | 1.000 1.000
        16 independent     cyclic       | 0.9990±0.0007 0.9994±0.0007 0.9994±0.0007 | 1.000 1.000
        16 independent     separation 8 | 0.9990±0.0005 0.9994±0.0005 0.9995±0.0005 | 1.000 1.000
        16 independent     poisson      | 0.9995±0.0005 0.9999±0.0005 0.9999±0.0004 | 1.000 1.000
        16 tree            once         | 0.9993±0.0005 0.9998±0.0005 0.9998±0.0005 | 0.574 1.000
        16 tree            epochs       | 0.9987±0.0009 0.9991±0.0009 0.9991±0.0009 | 0.428 0.987
        16 tree            cyclic       | 0.9986±0.0010 0.9990±0.0010 0.9990±0.0010 | 0.428 0.987
        16 tree            separation 8 | 0.9988±0.0007 0.9992±0.0007 0.9992±0.0007 | 0.524 0.998
        16 tree            poisson      | 0.9989±0.0009 0.9993±0.0009 0.9994±0.0008 | 0.392 0.897
        16 banded:bands=8  once         | 0.9994±0.0005 0.9998±0.0005 0.9999±0.0005 | 0.709 1.000
        16 banded:bands=8  epochs       | 0.9993±0.0011 0.9997±0.0011 0.9997±0.0011 | 0.571 0.968
        16 banded:bands=8  cyclic       | 0.9992±0.0012 0.9996±0.0012 0.9996±0.0012 | 0.588 1.057
        16 banded:bands=8  separation 8 | 0.9992±0.0008 0.9996±0.0008 0.9996±0.0008 | 0.711 1.074
        16 banded:bands=8  poisson      | 0.9993±0.0010 0.9998±0.0010 0.9998±0.0009 | 0.527 0.908
        16 banded:bands=64 once         | 0.9993±0.0006 0.9998±0.0006 0.9998±0.0006 | 0.701 1.000
        16 banded:bands=64 epochs       | 0.9992±0.0012 0.9996±0.0012 0.9996±0.0011 | 0.509 0.964
        16 banded:bands=64 cyclic       | 0.9991±0.0012 0.9995±0.0012 0.9995±0.0012 | 0.514 0.983
        16 banded:bands=64 separation 8 | 0.9991±0.0009 0.9996±0.0009 0.9995±0.0009 | 0.631 0.997
        16 banded:bands=64 poisson      | 0.9992±0.0011 0.9996±0.0011 0.9996±0.0010 | 0.479 0.905
        16 toeplitz        once         | 0.9994±0.0006 0.9998±0.0006 0.9998±0.0006 | 0.696 1.000
        16 toeplitz        epochs       | 0.9992±0.0012 0.9996±0.0012 0.9996±0.0012 | 0.501 0.963
        16 toeplitz        cyclic       | 0.9991±0.0012 0.9995±0.0012 0.9995±0.0012 | 0.505 0.982
        16 toeplitz        separation 8 | 0.9992±0.0009 0.9996±0.0009 0.9995±0.0009 | 0.623 0.997
        16 toeplitz        poisson      | 0.9992±0.0011 0.9997±0.0011 0.9997±0.0010 | 0.471 0.903
        16 blt             once         | 0.9994±0.0006 0.9998±0.0006 0.9998±0.0006 | 0.696 1.000
        16 blt             epochs       | 0.9992±0.0012 0.9996±0.0012 0.9996±0.0012 | 0.501 0.963
        16 blt             cyclic       | 0.9991±0.0012 0.9995±0.0012 0.9995±0.0012 | 0.505 0.982
        16 blt             separation 8 | 0.9992±0.0009 0.9996±0.0009 0.9995±0.0009 | 0.623 0.997
        16 blt             poisson      | 0.9992±0.0011 0.9997±0.0011 0.9997±0.0010 | 0.471 0.903
        64 independent     once         | 0.9983±0.0002 1.0002±0.0002 1.0003±0.0002 | 1.000 1.000
        64 independent     epochs       | 0.9983±0.0001 1.0002±0.0001 1.0003±0.0001 | 1.000 1.000
        64 independent     cyclic       | 0.9983±0.0003 1.0002±0.0003 1.0003±0.0003 | 1.000 1.000
        64 independent     separation 8 | 0.9984±0.0002 1.0003±0.0002 1.0003±0.0002 | 1.000 1.000
        64 independent     poisson      | 0.9984±0.0002 1.0003±0.0002 1.0004±0.0002 | 1.000 1.000
        64 tree            once         | 0.9983±0.0004 1.0002±0.0004 1.0002±0.0004 | 0.485 1.000
        64 tree            epochs       | 0.9986±0.0009 1.0005±0.0009 1.0005±0.0010 | 0.387 0.999
        64 tree            cyclic       | 0.9987±0.0010 1.0006±0.0010 1.0006±0.0010 | 0.387 0.999
        64 tree            separation 8 | 0.9984±0.0009 1.0003±0.0009 1.0004±0.0009 | 0.375 0.999
        64 tree            poisson      | 0.9984±0.0008 1.0003±0.0008 1.0003±0.0008 | 0.349 0.976
        64 banded:bands=8  once         | 0.9982±0.0003 1.0001±0.0003 1.0001±0.0003 | 0.678 1.000
        64 banded:bands=8  epochs       | 0.9981±0.0005 1.0000±0.0005 1.0001±0.0005 | 0.664 0.999
        64 banded:bands=8  cyclic       | 0.9982±0.0006 1.0001±0.0006 1.0002±0.0006 | 0.678 1.015
        64 banded:bands=8  separation 8 | 0.9981±0.0005 1.0000±0.0005 1.0001±0.0004 | 0.678 1.012
        64 banded:bands=8  poisson      | 0.9981±0.0005 1.0000±0.0005 1.0000±0.0004 | 0.608 0.978
        64 banded:bands=64 once         | 0.9983±0.0005 1.0002±0.0005 1.0002±0.0005 | 0.622 1.000
        64 banded:bands=64 epochs       | 0.9984±0.0009 1.0003±0.0009 1.0003±0.0009 | 0.477 0.997
        64 banded:bands=64 cyclic       | 0.9984±0.0009 1.0002±0.0010 1.0003±0.0009 | 0.482 0.999
        64 banded:bands=64 separation 8 | 0.9983±0.0009 1.0002±0.0009 1.0003±0.0009 | 0.471 0.998
        64 banded:bands=64 poisson      | 0.9983±0.0009 1.0002±0.0009 1.0002±0.0008 | 0.442 0.976
        64 toeplitz        once         | 0.9983±0.0005 1.0002±0.0005 1.0002±0.0005 | 0.618 1.000
        64 toeplitz        epochs       | 0.9984±0.0009 1.0002±0.0009 1.0003±0.0009 | 0.469 0.997
        64 toeplitz        cyclic       | 0.9983±0.0010 1.0002±0.0010 1.0003±0.0010 | 0.474 0.999
        64 toeplitz        separation 8 | 0.9983±0.0009 1.0002±0.0009 1.0003±0.0009 | 0.463 0.998
        64 toeplitz        poisson      | 0.9983±0.0009 1.0002±0.0009 1.0002±0.0008 | 0.435 0.976
        64 blt             once         | 0.9983±0.0005 1.0002±0.0005 1.0002±0.0005 | 0.618 1.000
        64 blt             epochs       | 0.9984±0.0009 1.0002±0.0009 1.0003±0.0009 | 0.469 0.997
        64 blt             cyclic       | 0.9983±0.0010 1.0002±0.0010 1.0003±0.0010 | 0.474 0.999
        64 blt             separation 8 | 0.9983±0.0009 1.0002±0.0009 1.0003±0.0009 | 0.464 0.998
        64 blt             poisson      | 0.9983±0.0009 1.0002±0.0009 1.0002±0.0008 | 0.435 0.976
       256 independent     once         | 0.9925±0.0001 1.0003±0.0001 1.0003±0.0001 | 1.000 1.000
       256 independent     epochs       | 0.9926±0.0001 1.0004±0.0002 1.0005±0.0002 | 1.000 1.000
       256 independent     cyclic       | 0.9927±0.0003 1.0005±0.0003 1.0005±0.0003 | 1.000 1.000
       256 independent     separation 8 | 0.9926±0.0001 1.0003±0.0001 1.0004±0.0001 | 1.000 1.000
       256 independent     poisson      | 0.9923±0.0001 1.0001±0.0001 1.0001±0.0001 | 1.000 1.000
       256 tree            once         | 0.9919±0.0006 0.9997±0.0006 0.9998±0.0006 | 0.428 1.000
       256 tree            epochs       | 0.9912±0.0012 0.9990±0.0012 0.9990±0.0012 | 0.356 1.000
       256 tree            cyclic       | 0.9911±0.0011 0.9989±0.0011 0.9989±0.0011 | 0.356 1.000
       256 tree            separation 8 | 0.9912±0.0012 0.9990±0.0012 0.9991±0.0011 | 0.332 1.000
       256 tree            poisson      | 0.9910±0.0012 0.9988±0.0012 0.9989±0.0011 | 0.323 0.994
       256 banded:bands=8  once         | 0.9927±0.0002 1.0005±0.0002 1.0005±0.0002 | 0.670 1.000
       256 banded:bands=8  epochs       | 0.9926±0.0002 1.0004±0.0003 1.0004±0.0003 | 0.669 1.000
       256 banded:bands=8  cyclic       | 0.9928±0.0004 1.0006±0.0004 1.0005±0.0004 | 0.670 1.000
       256 banded:bands=8  separation 8 | 0.9927±0.0003 1.0005±0.0003 1.0005±0.0003 | 0.670 1.002
       256 banded:bands=8  poisson      | 0.9924±0.0002 1.0002±0.0002 1.0002±0.0002 | 0.649 0.994
       256 banded:bands=64 once         | 0.9922±0.0002 0.9999±0.0002 0.9999±0.0002 | 0.585 1.000
       256 banded:bands=64 epochs       | 0.9917±0.0009 0.9995±0.0009 0.9993±0.0009 | 0.550 1.000
       256 banded:bands=64 cyclic       | 0.9917±0.0011 0.9995±0.0012 0.9993±0.0011 | 0.586 1.041
       256 banded:bands=64 separation 8 | 0.9918±0.0009 0.9996±0.0009 0.9994±0.0008 | 0.513 1.000
       256 banded:bands=64 poisson      | 0.9916±0.0008 0.9994±0.0008 0.9993±0.0007 | 0.495 0.994
       256 toeplitz        once         | 0.9920±0.0005 0.9998±0.0005 0.9996±0.0005 | 0.561 1.000
       256 toeplitz        epochs       | 0.9912±0.0014 0.9990±0.0014 0.9987±0.0013 | 0.443 1.000
       256 toeplitz        cyclic       | 0.9912±0.0014 0.9990±0.0014 0.9987±0.0014 | 0.447 1.000
       256 toeplitz        separation 8 | 0.9913±0.0013 0.9990±0.0014 0.9988±0.0012 | 0.421 1.000
       256 toeplitz        poisson      | 0.9912±0.0013 0.9990±0.0013 0.9987±0.0012 | 0.410 0.994
       256 blt             once         | 0.9920±0.0005 0.9998±0.0005 0.9996±0.0005 | 0.561 1.000
       256 blt             epochs       | 0.9912±0.0014 0.9990±0.0014 0.9987±0.0013 | 0.443 1.000
       256 blt             cyclic       | 0.9912±0.0014 0.9990±0.0014 0.9987±0.0014 | 0.447 1.000
       256 blt             separation 8 | 0.9913±0.0013 0.9990±0.0014 0.9988±0.0012 | 0.421 1.000
       256 blt             poisson      | 0.9912±0.0013 0.9990±0.0013 0.9987±0.0012 | 0.410 0.994
       800 independent     once         | 0.9757±0.0002 1.0004±0.0002 1.0004±0.0003 | 1.000 1.000
       800 independent     epochs       | 0.9755±0.0002 1.0001±0.0002 1.0002±0.0003 | 1.000 1.000
       800 independent     cyclic       | 0.9756±0.0001 1.0002±0.0001 1.0002±0.0001 | 1.000 1.000
       800 independent     separation 8 | 0.9756±0.0001 1.0002±0.0001 1.0002±0.0001 | 1.000 1.000
       800 independent     poisson      | 0.9755±0.0002 1.0001±0.0002 1.0002±0.0002 | 1.000 1.000
       800 tree            once         | 0.9760±0.0004 1.0007±0.0004 1.0008±0.0002 | 0.387 1.000
       800 tree            epochs       | 0.9760±0.0009 1.0006±0.0009 1.0008±0.0008 | 0.321 1.000
       800 tree            cyclic       | 0.9757±0.0009 1.0004±0.0010 1.0006±0.0008 | 0.324 1.000
       800 tree            separation 8 | 0.9762±0.0007 1.0009±0.0007 1.0010±0.0005 | 0.303 1.000
       800 tree            poisson      | 0.9762±0.0006 1.0008±0.0006 1.0011±0.0004 | 0.299 0.997
       800 banded:bands=8  once         | 0.9757±0.0002 1.0004±0.0002 1.0004±0.0002 | 0.668 1.000
       800 banded:bands=8  epochs       | 0.9757±0.0002 1.0004±0.0002 1.0004±0.0003 | 0.668 1.000
       800 banded:bands=8  cyclic       | 0.9752±0.0003 0.9998±0.0003 0.9999±0.0004 | 0.668 1.000
       800 banded:bands=8  separation 8 | 0.9758±0.0002 1.0004±0.0002 1.0004±0.0002 | 0.668 1.001
       800 banded:bands=8  poisson      | 0.9756±0.0003 1.0003±0.0003 1.0004±0.0003 | 0.661 0.998
       800 banded:bands=64 once         | 0.9755±0.0001 1.0002±0.0001 1.0001±0.0002 | 0.577 1.000
       800 banded:bands=64 epochs       | 0.9755±0.0005 1.0002±0.0005 1.0002±0.0006 | 0.573 1.000
       800 banded:bands=64 cyclic       | 0.9752±0.0009 0.9999±0.0009 1.0000±0.0009 | 0.577 1.000
       800 banded:bands=64 separation 8 | 0.9756±0.0003 1.0003±0.0003 1.0003±0.0004 | 0.548 1.000
       800 banded:bands=64 poisson      | 0.9754±0.0005 1.0001±0.0006 1.0002±0.0005 | 0.541 0.998
       800 toeplitz        once         | 0.9759±0.0005 1.0006±0.0006 1.0007±0.0006 | 0.524 1.000
       800 toeplitz        epochs       | 0.9768±0.0017 1.0015±0.0018 1.0018±0.0018 | 0.424 1.000
       800 toeplitz        cyclic       | 0.9767±0.0018 1.0014±0.0018 1.0017±0.0019 | 0.428 1.000
       800 toeplitz        separation 8 | 0.9768±0.0016 1.0015±0.0016 1.0015±0.0016 | 0.399 1.000
       800 toeplitz        poisson      | 0.9766±0.0017 1.0013±0.0017 1.0015±0.0017 | 0.395 0.998
       800 blt             once         | 0.9760±0.0006 1.0006±0.0006 1.0007±0.0006 | 0.525 1.000
       800 blt             epochs       | 0.9768±0.0017 1.0015±0.0018 1.0018±0.0018 | 0.424 1.000
       800 blt             cyclic       | 0.9767±0.0018 1.0014±0.0018 1.0017±0.0019 | 0.427 1.000
       800 blt             separation 8 | 0.9768±0.0016 1.0015±0.0016 1.0016±0.0016 | 0.399 1.000
       800 blt             poisson      | 0.9766±0.0017 1.0013±0.0017 1.0015±0.0017 | 0.396 0.998
      2048 independent     once         | 0.9606±0.0000 1.0007±0.0000 1.0017±0.0001 | 1.000 1.000
      2048 independent     epochs       | 0.9604±0.0002 1.0004±0.0002 1.0016±0.0003 | 1.000 1.000
      2048 independent     cyclic       | 0.9604±0.0002 1.0004±0.0002 1.0016±0.0001 | 1.000 1.000
      2048 independent     separation 8 | 0.9601±0.0002 1.0001±0.0002 1.0011±0.0002 | 1.000 1.000
      2048 independent     poisson      | 0.9605±0.0001 1.0005±0.0001 1.0015±0.0002 | 1.000 1.000
      2048 tree            once         | 0.9361±0.0011 1.0007±0.0012 1.0011±0.0013 | 0.371 1.000
      2048 tree            epochs       | 0.9382±0.0009 1.0029±0.0009 1.0042±0.0011 | 0.321 1.000
      2048 tree            cyclic       | 0.9382±0.0008 1.0029±0.0009 1.0041±0.0013 | 0.321 1.000
      2048 tree            separation 8 | 0.9379±0.0010 1.0026±0.0010 1.0035±0.0013 | 0.297 1.000
      2048 tree            poisson      | 0.9383±0.0013 1.0030±0.0013 1.0038±0.0016 | 0.296 1.000
      2048 banded:bands=8  once         | 0.9602±0.0002 1.0002±0.0003 1.0014±0.0002 | 0.668 1.000
      2048 banded:bands=8  epochs       | 0.9602±0.0001 1.0002±0.0001 1.0016±0.0002 | 0.667 1.000
      2048 banded:bands=8  cyclic       | 0.9606±0.0000 1.0006±0.0000 1.0019±0.0000 | 0.667 1.000
      2048 banded:bands=8  separation 8 | 0.9600±0.0001 1.0000±0.0001 1.0011±0.0002 | 0.667 1.000
      2048 banded:bands=8  poisson      | 0.9607±0.0001 1.0007±0.0001 1.0019±0.0003 | 0.665 1.000
      2048 banded:bands=64 once         | 0.9596±0.0002 0.9996±0.0002 1.0015±0.0002 | 0.574 1.000
      2048 banded:bands=64 epochs       | 0.9599±0.0001 0.9999±0.0001 1.0021±0.0000 | 0.573 1.000
      2048 banded:bands=64 cyclic       | 0.9601±0.0003 1.0001±0.0004 1.0021±0.0004 | 0.574 1.000
      2048 banded:bands=64 separation 8 | 0.9596±0.0003 0.9996±0.0003 1.0016±0.0003 | 0.563 1.000
      2048 banded:bands=64 poisson      | 0.9600±0.0001 1.0000±0.0001 1.0020±0.0004 | 0.559 0.999
      2048 toeplitz        once         | 0.9364±0.0000 1.0010±0.0000 1.0009±0.0004 | 0.498 1.000
      2048 toeplitz        epochs       | 0.9379±0.0003 1.0026±0.0003 1.0027±0.0001 | 0.410 1.000
      2048 toeplitz        cyclic       | 0.9379±0.0002 1.0026±0.0002 1.0026±0.0003 | 0.413 1.000
      2048 toeplitz        separation 8 | 0.9378±0.0000 1.0025±0.0000 1.0023±0.0006 | 0.386 1.000
      2048 toeplitz        poisson      | 0.9378±0.0004 1.0025±0.0004 1.0023±0.0011 | 0.383 0.999
      2048 blt             once         | 0.9364±0.0001 1.0010±0.0001 1.0009±0.0005 | 0.516 1.000
      2048 blt             epochs       | 0.9380±0.0003 1.0028±0.0003 1.0028±0.0000 | 0.428 1.000
      2048 blt             cyclic       | 0.9381±0.0002 1.0028±0.0002 1.0028±0.0002 | 0.431 1.000
      2048 blt             separation 8 | 0.9379±0.0000 1.0026±0.0000 1.0023±0.0006 | 0.401 1.000
      2048 blt             poisson      | 0.9379±0.0004 1.0026±0.0004 1.0024±0.0010 | 0.398 0.999
    farthest from 1: score 0.9361 in 2048 tree once
    farthest from 1: μ 1.0030 in 2048 tree poisson
    farthest from 1: null 1.0042 in 2048 tree epochs
    2048 rounds, 2000 canaries: 41.9 s
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe import RoundFacts, RunAuditor
from fl_epe.auditing.record.round_correlation import (
    SKETCH_PARTS,
    WINDOW,
    Precision,
    Residual,
    RoundCorrelation,
    Whitener,
    reach_of,
)
from fl_epe.mechanism import norm, strategy_matrix
from fl_epe.schedules import make_schedule, presence

Floats = NDArray[np.float64]

NOISE = 0.25
MECHANISMS = (
    "independent",
    "tree",
    "banded:bands=8",
    "banded:bands=64",
    "toeplitz",
    "blt",
)
SCHEDULES = {  # with participations
    "once": ("epochs", 1),
    "epochs": ("epochs", 4),
    "cyclic": ("cyclic", 4),
    "separation 8": ("min-separation:separation=8", 4),
    "poisson": ("poisson", 4),
}
SEEDS = {16: 16, 64: 16, 256: 8, 800: 4, 2048: 2}
_MANY = 10**9  # dimensions of a large model


def matrix_of(mechanism: str, rounds: int) -> Floats:
    """The strategy C; bands are no more than the rounds."""
    kind, _, bands = mechanism.partition(":bands=")
    mechanism = (
        f"{kind}:bands={min(int(bands), rounds)}" if bands else mechanism
    )
    matrix = strategy_matrix(mechanism, rounds)
    return np.eye(rounds) if matrix is None else matrix


def participations(schedule: str, rounds: int, count: int, seed: int) -> Floats:
    """Which rounds each canary is in, ``(T, k)``, without canaries that are in none."""
    spec, times = SCHEDULES[schedule]
    if "separation" in spec:
        times = min(times, rounds // 8)
    planned = make_schedule(spec, rounds, times)
    presences = presence(planned, count, np.random.default_rng(seed), count)
    return presences[:, presences.any(axis=0)].astype(np.float64)


def estimated(
    factor: Floats, seed: int, parts: int, window: int
) -> RoundCorrelation:
    """What the package makes of M numbers for each of the rounds, whose lengths are known."""
    fresh = np.random.default_rng(seed).standard_normal((len(factor), parts))
    sketches = scipy.linalg.solve_triangular(factor, fresh, lower=True)
    inverse = scipy.linalg.solve_triangular(
        factor, np.eye(len(factor)), lower=True
    )
    lengths = np.sqrt(parts) * np.linalg.norm(inverse, axis=1)
    whitener = Whitener(parts, window)
    rows = [
        norm(sketch) / length * whitener.add(Residual(sketch))
        for sketch, length in zip(sketches, lengths, strict=True)
    ]
    return RoundCorrelation.of(rows, _MANY)


def measure(
    factor: Floats, seed: int, asked: argparse.Namespace
) -> Iterator[tuple[float, float, float, float, float]]:
    """For each schedule: score and μ over theory, null; score and null of the filter apart."""
    rounds = len(factor)
    reach = rounds - np.flatnonzero(
        [np.any(np.diag(factor, t - rounds)) for t in range(1, rounds)]
    )
    window = asked.window or max(WINDOW, reach.max(initial=1))
    correlation = estimated(factor, seed, asked.parts, window)
    precision = Precision.of(
        reach_of(rounds, correlation.window), _MANY, asked.parts
    )
    spread = scipy.linalg.solve_triangular(
        factor, NOISE * np.eye(rounds), lower=True
    )
    lengths = np.linalg.norm(spread, axis=1)[:, None]
    presences = [
        participations(name, rounds, asked.canaries, seed) for name in SCHEDULES
    ]
    whitened = correlation.whiten(
        np.concatenate([spread, *presences], axis=1) / lengths
    )
    null_scores, *signals = np.split(
        whitened,
        np.cumsum([rounds, *(part.shape[1] for part in presences)])[:-1],
        1,
    )
    for presence_, signal in zip(presences, signals, strict=True):
        theory = np.linalg.norm(factor @ presence_, axis=0).mean() / NOISE
        by_filter, null = filtered(signal, null_scores)
        by_rounds = filtered(presence_ / lengths, spread / lengths)
        by_filter /= theory
        yield (
            by_filter / precision.observed_std,
            by_filter * precision.unit,
            null / precision.null_std,
            by_rounds[0] / theory,
            by_rounds[1],
        )


def filtered(signals: Floats, spread: Floats) -> tuple[float, float]:
    """Mean of ``gᵀs/‖g‖`` if the scores have the means g, and its deviation without them.

    Args:
        signals: g, ``(T, k)``.
        spread: scores are that times independent N(0, 1), ``(T, T)``.
    """
    lengths = np.linalg.norm(signals, axis=0)
    noise = np.linalg.norm(spread.T @ signals, axis=0) / lengths
    return float(lengths.mean()), float(np.sqrt(np.mean(noise**2)))


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--seeds", type=int, help="by default fewer for more rounds"
    )
    parser.add_argument("--mechanisms", nargs="+", default=list(MECHANISMS))
    parser.add_argument("--canaries", type=int, default=300)
    parser.add_argument("--parts", type=int, default=SKETCH_PARTS)
    parser.add_argument(
        "--window", type=int, help="by default as far as noise is correlated"
    )
    parser.add_argument(
        "--time", action="store_true", help="of `RunAuditor` only"
    )
    options = parser.parse_args()
    cells: dict[str, Floats] = {}
    if not options.time:
        print(
            "rounds mechanism       schedule     | score         μ             null   | apart, null"
        )
        for rounds in options.rounds:
            for mechanism in options.mechanisms:
                cells |= print_rows(rounds, mechanism, options)
        print_worst(cells)
    print_time(2048, 2000)


def print_rows(
    rounds: int, mechanism: str, asked: argparse.Namespace
) -> dict[str, Floats]:
    """A row for each schedule; what is in it, by its name."""
    factor = matrix_of(mechanism, rounds)
    seeds = asked.seeds or SEEDS.get(rounds, 4)
    results = np.array(
        [list(measure(factor, seed, asked)) for seed in range(seeds)]
    )
    centres, errors = (
        results.mean(axis=0),
        results.std(axis=0, ddof=1) / np.sqrt(seeds),
    )
    rows = {}
    for name, centre, error in zip(SCHEDULES, centres, errors, strict=True):
        shown = " ".join(
            f"{c:.4f}±{e:.4f}"
            for c, e in zip(centre[:3], error[:3], strict=True)
        )
        start = f"{rounds:6} {mechanism:15} {name:12}"
        print(
            f"{start} | {shown} | {centre[3]:.3f} {centre[4]:.3f}", flush=True
        )
        rows[start] = centre
    return rows


def print_worst(cells: dict[str, Floats]) -> None:
    """The cells that are farthest from 1."""
    for i, name in enumerate(("score", "μ", "null")):
        worst = max(cells, key=lambda cell: abs(cells[cell][i] - 1))
        print(
            f"farthest from 1: {name} {cells[worst][i]:.4f} in {' '.join(worst.split())}"
        )


def print_time(rounds: int, count: int) -> None:
    """How long `RunAuditor` takes for so many rounds of noise."""
    rng, dim = np.random.default_rng(0), 60_000
    auditor = RunAuditor(count, 100, seed=1, delta=1e-5, window=rounds)
    theta = np.zeros(dim)
    auditor.begin(theta)
    seconds = 0.0
    for _ in range(rounds):
        present = np.flatnonzero(rng.random(count) < 1 / 16).tolist()
        theta = theta + rng.standard_normal(dim)
        began = time.perf_counter()
        auditor.observe(theta, RoundFacts(present, 1.0))
        seconds += time.perf_counter() - began
    print(f"{rounds} rounds, {count} canaries: {seconds:.1f} s")


if __name__ == "__main__":
    main()
